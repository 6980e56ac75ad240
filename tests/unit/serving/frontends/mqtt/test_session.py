"""A session against a broker of a few bytes: what a CONNACK may say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.serving.frontends.mqtt.messages import OutgoingPublish
from gateway.serving.frontends.mqtt.session.identity import MqttIdentity
from gateway.serving.frontends.mqtt.session.keepalive import Keepalive
from gateway.serving.frontends.mqtt.session.session import MqttSession
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from tests.simulators.broker import Talk, scripted

NO_KEEPALIVE = b"\x20\x06\x00\x00\x03\x13\x00\x00"
"""CONNACK: accepted, Server Keep Alive 0, which turns the keepalive off (MQTT 5, 3.2.2.3.14)."""


class Owner:
    """Notes that it was welcomed, and what was taken."""

    def __init__(self) -> None:
        self.was_welcomed, self.takes = asyncio.Event(), asyncio.Event()
        self.was_taken: list[tuple[int, int]] = []

    def welcomed(self, _: object) -> None:
        self.was_welcomed.set()

    def taken(self, mid: int, code: int) -> None:
        self.was_taken.append((mid, code))
        self.takes.set()

    def lost(self, *_: object) -> None: ...

    def batch_began(self) -> None: ...

    in_batch = False
    subscribed = received = writable = lost
    batch_ended = batch_began


async def _says_nothing(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None: ...


@asynccontextmanager
async def connected(goes_on: Talk = _says_nothing) -> AsyncIterator[tuple[MqttSession, Owner]]:
    """Yield a session that was welcomed; the broker `goes_on`, and listens until it is left."""
    gone = asyncio.Event()

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(NO_KEEPALIVE)
        await goes_on(reader, writer)
        await reader.read()
        gone.set()

    async with scripted(welcome) as port:
        owner, url = Owner(), f"mqtt://127.0.0.1:{port}"
        identity = MqttIdentity("gw", OutgoingPublish("s", b""))
        session = MqttSession(MqttSettings(url=url), identity, owner, version_5=True, epoch=1)
        await session.connect()
        await asyncio.wait_for(owner.was_welcomed.wait(), 15)
        yield session, owner
        session.abandon()
        await asyncio.wait_for(gone.wait(), 15)


@pytest.mark.asyncio
async def test_a_broker_that_wants_no_keepalive_costs_no_wakeups(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[None] = []
    tick = Keepalive._tick
    monkeypatch.setattr(Keepalive, "_tick", lambda self: (ticks.append(None), tick(self)))
    async with connected():
        for _ in range(50):
            await asyncio.sleep(0)
    assert ticks == []


@pytest.mark.asyncio
@pytest.mark.parametrize(("read_s", "together"), [(60.0, 20), (0.0, 1)])
async def test_messages_that_have_come_are_read_in_one_pass_of_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, read_s: float, together: int
) -> None:
    """The others wait for the next pass once the time of a pass is over."""
    monkeypatch.setattr("gateway.serving.frontends.mqtt.session.session.READ_S", read_s)
    publish = b"\x30\x06\x00\x01t\x00{}"
    may_write = asyncio.Event()

    async def publishes(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_write.wait()
        writer.write(publish * 20)

    async with connected(publishes) as (_, owner):
        came, ended, of_a_pass = list[object](), asyncio.Event(), list[int]()

        def received(message: object) -> None:
            came.append(message)
            if len(came) == 1:
                asyncio.get_running_loop().call_soon(lambda: of_a_pass.append(len(came)))
            if len(came) == 20:
                asyncio.get_running_loop().call_soon(ended.set)

        monkeypatch.setattr(owner, "received", received)
        may_write.set()
        await asyncio.wait_for(ended.wait(), 15)
        assert of_a_pass == [together]


@pytest.mark.asyncio
async def test_an_owner_that_asks_for_each_message_does_not_prolong_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.serving.frontends.mqtt.session.session.READ_S", 0.0)
    may_write, ended, of_a_pass = asyncio.Event(), asyncio.Event(), list[int]()

    async def publishes(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await may_write.wait()
        writer.write(b"\x30\x06\x00\x01t\x00{}" * 20)

    async with connected(publishes) as (session, owner):
        came = list[object]()

        def received(message: object) -> None:
            came.append(message)
            session.read(on=True)
            if len(came) % 4 == 1:
                before = len(came)
                asyncio.get_running_loop().call_soon(lambda: of_a_pass.append(len(came) - before))
            if len(came) == 20:
                asyncio.get_running_loop().call_soon(ended.set)

        monkeypatch.setattr(owner, "received", received)
        may_write.set()
        await asyncio.wait_for(ended.wait(), 15)
        assert max(of_a_pass) <= 1


@pytest.mark.asyncio
async def test_a_password_that_does_not_fit_into_a_packet_is_told(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("x" * 65_536)
    settings = MqttSettings(url="mqtt://127.0.0.1:9", username="u", password_file=str(tmp_path / "password"))
    session = MqttSession(settings, MqttIdentity("gw", None), Owner(), version_5=True, epoch=1)
    with pytest.raises(ValueError, match="65536 bytes does not fit"):
        await session.connect()
