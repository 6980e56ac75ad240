"""Sleep that a hint may end, and nothing worse: against a real broker, and against ill ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.transfer.settings import FetchSettings
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.fetch.wake_hints import Wake
from gateway.device.agent.settings import WakeClientSettings
from gateway.device.agent.signals import Alarm
from tests.simulators.broker import Mosquitto, mosquitto
from tests.simulators.constants import settings_with
from tests.simulators.daemon import ROOT
from tests.simulators.fleet_authority import FleetAuthority
from tests.simulators.mqtt_peer import Peer, peer

TOPIC = "edge-fleet/door-1/wake"
LONG_S = 30.0
"""No test waits for it: a sleep that long ends by what is tested, or the test's own time is over."""


@contextlib.contextmanager
def waking(
    folder: Path, url: str, alarm: Alarm | None = None, *, fetch: FetchSettings | None = None, **settings: float
) -> Iterator[Wake]:
    (folder / "device.json").write_text(json.dumps({"device": "door-1"}))
    quick = {"retry_s": 0.02, "least_pause_s": 0.0, "spread_s": 0.0, "connect_timeout_s": 2.0, **settings}
    config = AgentConfig(wake=settings_with(WakeClientSettings(url=url), **quick), fetch=fetch or FetchSettings())
    wake = Wake(config, folder, lambda: 0.5, alarm or Alarm())
    with contextlib.closing(wake):
        yield wake


def with_broker(folder: Path, act: Callable[[Mosquitto, Peer], Awaitable[None]]) -> None:
    async def run() -> None:
        async with mosquitto(folder) as broker, peer(broker.port) as sender:
            await act(broker, sender)

    asyncio.run(run())


async def slept(wake: Wake, pause_s: float = LONG_S, **options: bool) -> bool:
    return await asyncio.to_thread(lambda: wake.sleep(pause_s, **options))


def test_a_hint_ends_the_sleep(tmp_path: Path) -> None:
    async def act(broker: Mosquitto, sender: Peer) -> None:
        with waking(tmp_path, broker.url) as wake:
            assert not await slept(wake, 0.2)
            for _ in range(2):
                sleeping = asyncio.create_task(slept(wake))
                await sender.publish(TOPIC, b"whatever it says" * 100)
                assert await sleeping

    with_broker(tmp_path, act)


def test_a_hint_that_was_given_during_a_turn_or_while_the_line_was_away_comes_later(tmp_path: Path) -> None:
    async def act(broker: Mosquitto, sender: Peer) -> None:
        with waking(tmp_path, broker.url) as wake:
            assert not await slept(wake, 0.2)
            await sender.publish(TOPIC, b"")
            assert await slept(wake)
        await sender.publish(TOPIC, b"")
        with waking(tmp_path, broker.url) as wake:
            assert await slept(wake)
            assert not await slept(wake, 0.1)

    with_broker(tmp_path, act)


def test_hints_wake_no_sooner_than_allowed_and_not_at_all_after_a_failure(tmp_path: Path) -> None:
    async def act(broker: Mosquitto, sender: Peer) -> None:
        with waking(tmp_path, broker.url, least_pause_s=0.4) as wake:
            assert not await slept(wake, 0.2)
            began_s = time.monotonic()
            for _ in range(5):
                await sender.publish(TOPIC, b"")
            assert await slept(wake)
            assert time.monotonic() - began_s >= 0.4
            await sender.publish(TOPIC, b"")
            assert not await slept(wake, 0.3, heeds_hints=False)
            assert not await slept(wake, 0.1)

    with_broker(tmp_path, act)


def test_a_broker_that_comes_back_is_heard_again(tmp_path: Path) -> None:
    async def act(broker: Mosquitto, sender: Peer) -> None:
        with waking(tmp_path, broker.url, retry_limit_s=0.1) as wake:
            assert not await slept(wake, 0.2)
            await broker.kill()
            sleeping = asyncio.create_task(slept(wake))
            await broker.start()
            async with peer(broker.port) as other:
                await other.publish(TOPIC, b"")
                assert await sleeping

    with_broker(tmp_path, act)


def test_the_broker_is_asked_whether_it_is_there(tmp_path: Path) -> None:
    async def act(broker: Mosquitto, sender: Peer) -> None:
        with waking(tmp_path, broker.url, keepalive_s=1) as wake:
            sleeping = asyncio.create_task(slept(wake))
            await asyncio.to_thread(lambda: _until(lambda: "PINGREQ" in (tmp_path / "mosquitto.log").read_text()))
            await sender.publish(TOPIC, b"")
            assert await sleeping

    async def run() -> None:
        async with mosquitto(tmp_path, "log_type all") as broker, peer(broker.port) as sender:
            await act(broker, sender)

    asyncio.run(run())


def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        threading.Event().wait(0.02)


def test_a_signal_ends_it_at_once(tmp_path: Path) -> None:
    alarm = Alarm()
    with waking(tmp_path, "mqtt://127.0.0.1:1", alarm) as wake:
        for _ in range(100_000):
            alarm.set()
        assert not wake.sleep(LONG_S)
        alarm.clear()
        threading.Timer(0.1, alarm.set).start()
        assert not wake.sleep(LONG_S)


@contextlib.contextmanager
def speaking(content: bytes, context: FleetAuthority | None = None) -> Iterator[int]:
    """Yield the port of a broker that sends this to every client, and reads nothing."""
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.02)

        def run() -> None:
            with contextlib.ExitStack() as stack:
                while not stop.is_set():
                    with contextlib.suppress(OSError):
                        connection = stack.enter_context(server.accept()[0])
                        connection.settimeout(1.0)
                        if context:
                            made = context.server_context().wrap_socket(connection, server_side=True)
                            connection = stack.enter_context(made)
                        connection.sendall(content)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            stop.set()
            thread.join()


ILL = {
    "silent": b"",
    "refuses": b"\x20\x02\x00\x05",
    "no broker": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "endless": b"\x20\x02\x00\x00\x90\x03\x00\x01\x01" + b"\x30\xff\xff\xff\x7f" + b"x" * 10_000,
    "a packet that never ends": b"\x20\x02\x00\x00\x90\x03\x00\x01\x01" + b"\x30\xff\x3f" + b"x" * 100,
}


@pytest.mark.parametrize("case", ILL)
def test_ill_brokers_wake_nobody_and_keep_nobody(tmp_path: Path, case: str) -> None:
    with speaking(ILL[case]) as port, waking(tmp_path, f"mqtt://127.0.0.1:{port}", connect_timeout_s=0.1) as wake:
        assert not wake.sleep(0.5)


def test_over_tls_who_is_not_the_broker_is_not_heard(tmp_path: Path) -> None:
    own, other = FleetAuthority(tmp_path / "own"), FleetAuthority(tmp_path / "other")
    hint = b"\x20\x02\x00\x00\x90\x03\x00\x01\x01" + b"\x30\x05\x00\x03a/b"
    for authority, heard in ((own, True), (other, False)):
        fetch = FetchSettings(ca_file=str(authority.file))
        with speaking(hint, own) as port, waking(tmp_path, f"mqtts://localhost:{port}", fetch=fetch) as wake:
            assert wake.sleep(LONG_S if heard else 0.5) == heard


@pytest.mark.parametrize("url", ["", "http://a", "mqtt://", "mqtt://u:p@a", "mqtt://a:x", "mqtt://a/topic"])
def test_what_is_no_broker_is_said_at_the_start(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError, match="is no broker"), waking(tmp_path, url):
        pass


ASLEEP = """
import sys, threading
from pathlib import Path
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.loop import Loop
from gateway.device.agent.settings import WakeClientSettings
WakeClientSettings.retry_s = 0.01
loop = Loop(Path(sys.argv[1]), AgentConfig(wake=WakeClientSettings(url=sys.argv[2])))
assert not loop._wake.sleep(0.5)
heavy = {"urllib3", "tuf", "cryptography", "paho"} & set(sys.modules)
print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20, sorted(heavy))
"""


@pytest.mark.parametrize("secure", [False, True])
def test_what_sleeps_and_listens_stays_small(tmp_path: Path, secure: bool) -> None:
    authority = FleetAuthority(tmp_path / "own")
    (tmp_path / "device.json").write_text('{"device": "door-1"}')
    (tmp_path / "ca.pem").write_bytes(authority.file.read_bytes())
    with speaking(b"\x20\x02\x00\x00\x90\x03\x00\x01\x01", authority if secure else None) as port:
        url = f"{'mqtts' if secure else 'mqtt'}://localhost:{port}"
        command = [sys.executable, "-c", ASLEEP, str(tmp_path), url]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mib, heavy = done.stdout.split(maxsplit=1)
    assert int(mib) < 45
    assert heavy.strip() == "[]"
