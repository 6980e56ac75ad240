"""Connections without a TLS handshake: how many may be open, what becomes of them, and that others come in."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from pathlib import Path

import pytest

from fleet.controller.serving.settings import ProxySettings, RateSettings, ServingSettings
from fleet.controller.serving.tls import server_context
from gateway.common.wire.handshakes import HandshakeLimits, Handshakes
from tests.simulators.constants import settings_with
from tests.simulators.fleet_http import AUTHORITY, Controller, controlling, device, hang_up, now

pytestmark = pytest.mark.asyncio
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def silent(controller: Controller, address: str = "127.0.0.1") -> Peer:
    """Open a connection, and send nothing."""
    return await asyncio.open_connection("127.0.0.1", controller.port, local_addr=(address, 0))


async def asks(controller: Controller, address: str) -> bytes:
    """Return the status line of the answer to a device."""
    context = ssl.create_default_context(cafile=str(controller.ca_file))
    context.load_cert_chain(device("camera-7").write(controller.folder))
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", controller.port, local_addr=(address, 0), ssl=context, server_hostname="localhost"
    )
    try:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return (await reader.readline()).strip()
    finally:
        await hang_up(writer)


async def test_one_address_shakes_only_so_many_hands_at_once(tmp_path: Path) -> None:
    settings = settings_with(ServingSettings(), max_handshakes_per_address=2)
    async with controlling(tmp_path, tls=True, settings=settings) as controller:
        peers = [await silent(controller) for _ in range(3)]
        assert await peers[2][0].read() == b""
        assert controller.counts == {"handshakes_turned_away": 1}
        assert await asks(controller, "127.0.0.2") == b"HTTP/1.1 200 OK"
        await hang_up(peers[0][1])
        while controller.counts["handshakes_failed"] < 1:
            await asyncio.sleep(0.01)
        assert await asks(controller, "127.0.0.1") == b"HTTP/1.1 200 OK"
        for _, writer in peers[1:]:
            await hang_up(writer)


async def test_one_address_begins_only_so_many_in_a_second(tmp_path: Path) -> None:
    settings = ServingSettings(rates=settings_with(RateSettings(), handshake_per_s=0.001, handshake_burst=2))
    async with controlling(tmp_path, tls=True, settings=settings) as controller:
        for _ in range(2):
            assert await asks(controller, "127.0.0.1") == b"HTTP/1.1 200 OK"
        with pytest.raises((ConnectionError, ssl.SSLEOFError)):
            await asks(controller, "127.0.0.1")
        assert controller.counts == {"handshakes_turned_away": 1}
        assert await asks(controller, "127.0.0.2") == b"HTTP/1.1 200 OK"


async def test_a_peer_does_not_pay_for_a_late_server(tmp_path: Path) -> None:
    """The handshake has begun, and the process cannot go on with it for longer than a peer may take."""
    async with controlling(
        tmp_path, tls=True, settings=settings_with(ServingSettings(), handshake_timeout_s=3.0)
    ) as controller:
        trusting = ssl.create_default_context(cafile=str(controller.ca_file))
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        shaking = trusting.wrap_bio(incoming, outgoing, server_hostname="localhost")
        reader, writer = await silent(controller)
        with pytest.raises(ssl.SSLWantReadError):
            shaking.do_handshake()
        writer.write(outgoing.read())
        while shaking.version() is None or not shaking.getpeercert():
            incoming.write(await reader.read(4096))
            with contextlib.suppress(ssl.SSLWantReadError):
                shaking.do_handshake()
        time.sleep(4.5)  # the event loop stands still
        await asyncio.sleep(0)
        writer.write(outgoing.read())
        shaking.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        writer.write(outgoing.read())
        incoming.write(await reader.read(65_536))
        while not (answer := _read(shaking)):
            assert not reader.at_eof()
            incoming.write(await reader.read(65_536))
        assert answer.startswith(b"HTTP/1.1 200 OK")
        await hang_up(writer)


def _read(shaking: ssl.SSLObject) -> bytes:
    with contextlib.suppress(ssl.SSLWantReadError):
        return shaking.read(4096)
    return b""


async def test_who_comes_when_all_hands_are_shaken_waits_his_turn(tmp_path: Path) -> None:
    async with controlling(
        tmp_path, tls=True, settings=settings_with(ServingSettings(), max_handshakes=2)
    ) as controller:
        (_, first), (_, second) = await silent(controller), await silent(controller)
        while len(controller.server._listeners._servers[0]._under_way) < 2:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        asking = asyncio.create_task(asks(controller, "127.0.0.2"))
        done, _ = await asyncio.wait([asking], timeout=0.2)
        assert not done
        await hang_up(first)
        assert await asking == b"HTTP/1.1 200 OK"
        await hang_up(second)


async def test_a_trusted_proxy_may_shake_as_many_as_it_likes(tmp_path: Path) -> None:
    rates = settings_with(RateSettings(), handshake_per_s=0.001, handshake_burst=1)
    settings = settings_with(
        ServingSettings(), max_handshakes_per_address=1, rates=rates, proxy=ProxySettings(("127.0.0.3",))
    )
    async with controlling(tmp_path, tls=True, settings=settings) as controller:
        peers = [await silent(controller, "127.0.0.3") for _ in range(3)]
        assert await asks(controller, "127.0.0.3") == b"HTTP/1.1 200 OK"
        assert controller.counts == {}
        for _, writer in peers:
            await hang_up(writer)


async def test_a_stop_leaves_them_outside(tmp_path: Path) -> None:
    async with controlling(tmp_path, tls=True) as controller:
        early = await silent(controller)
        while not controller.server._listeners._servers[0]._under_way:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        late = await silent(controller)
        await controller.server.stop(0)
        for reader, writer in (early, late):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            await hang_up(writer)


class Full(socket.socket):
    """Listening socket of a process that has too many files open, once."""

    failures = 1

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_where_nobody_can_be_let_in_it_is_said_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    class Greeting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"hello")
            transport.close()

    context = server_context(*AUTHORITY.issue_server(["localhost"], now()), AUTHORITY.pem)
    listener = Full()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    port = listener.getsockname()[1]
    handshakes = Handshakes(listener, Greeting, HandshakeLimits(lambda: context, 5.0, 8, 8))
    trusting = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="localhost")
    assert await reader.read() == b"hello"
    assert "no connection is accepted for 1 s: [Errno 24] Too many open files" in caplog.text
    await hang_up(writer)
    handshakes.close()
    await handshakes.wait_closed()
