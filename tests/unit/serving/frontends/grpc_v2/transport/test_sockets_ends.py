"""Ends of connections on a transport of our own, and that an end affects no other connection."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.serving.frontends.grpc_v2.transport import sockets as module
from gateway.serving.frontends.grpc_v2.transport.sockets import Sockets
from tests.simulators.wires import BIG, Kept, listening, received

pytestmark = pytest.mark.asyncio


@pytest.fixture(params=[socket.AF_INET, socket.AF_UNIX], ids=["tcp", "unix"])
def family(request: pytest.FixtureRequest) -> int:
    return int(request.param)


async def test_the_peer_ends(family: int) -> None:
    async with listening(family) as served:
        connection, client = await served.connect()
        client.send(b"last")
        client.close()
        await connection.until(lambda: connection.lost)
        assert (connection.got, connection.lost, connection.transport.is_closing()) == (b"last", [None], True)
        connection.transport.write(b"late")
        connection.transport.writelines([b"late"])
        connection.transport.pause_reading()
        connection.transport.resume_reading()
        connection.transport.close()
        connection.transport.abort()
        assert connection.told == ["made", "read", "lost"]


async def test_the_peer_resets() -> None:
    for paused in (False, True):
        async with listening() as served:
            connection, client = await served.connect()
            if paused:
                connection.transport.pause_reading()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, module.AT_ONCE)
            client.close()
            await connection.until(lambda connection=connection: connection.lost)
            assert isinstance(connection.lost[0], ConnectionResetError)


async def test_what_waits_for_its_turn_is_dropped_once_the_peer_has_left(family: int) -> None:
    async with listening(family) as served:
        connection, client = await served.connect()
        # and for ever: what was read never comes to an end
        connection.on["read"] = lambda: setattr(connection, "behind", 1)
        client.send(b"asked")
        await connection.until(lambda: connection.behind)
        client.close()
        await connection.until(lambda: connection.lost)
        assert served.sockets.kept_bytes == 0


async def test_a_peer_that_is_behind_holds_up_no_other(family: int) -> None:
    async with listening(family) as served:
        connection, client = await served.connect()
        connection.on["read"] = lambda: setattr(connection, "behind", 1)
        client.send(b"endless")
        await connection.until(lambda: connection.behind)
        other, words = await served.connect()
        words.send(b"hello")
        await other.until(lambda: other.got == b"hello")
        assert connection.got == b"endless"


async def test_writing_to_one_who_is_gone() -> None:
    for write in (lambda transport: transport.write(b"x" * 9), lambda transport: transport.writelines([b"x", b"y"])):
        async with listening() as served:
            connection, client = await served.connect()
            connection.transport.pause_reading()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, module.AT_ONCE)
            client.close()
            write(connection.transport)
            write(connection.transport)
            await connection.until(lambda connection=connection: connection.lost)
            assert isinstance(connection.lost[0], OSError)


async def test_closing_sends_what_waits(family: int) -> None:
    async with listening(family) as served:
        connection, client = await served.connect()
        connection.transport.write(BIG)
        connection.transport.close()
        connection.transport.close()
        assert connection.transport.is_closing()
        connection.transport.write(b"not any more")
        assert await received(client, len(BIG) + 1) == BIG
        assert not connection.lost
        client.close()
        await connection.until(lambda: connection.lost)


async def test_a_peer_that_goes_on_talking_hears_why_it_was_closed() -> None:
    """Unread bytes would make the kernel reset the connection, and drop what we said."""
    async with listening() as served:
        connection, client = await served.connect()
        client.send(BIG[:50_000])
        connection.transport.write(b"goaway")
        connection.transport.close()
        for _ in range(10):
            client.send(BIG[:10_000])
            await asyncio.sleep(0.001)
        assert await received(client, 100) == b"goaway"
        assert len(connection.got) == 0
        client.close()
        await connection.until(lambda: connection.lost)


async def test_a_peer_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.02)
    async with listening() as served:
        connection, client = await served.connect()
        connection.transport.close()
        assert await received(client, 1) == b""
        await connection.until(lambda: connection.lost)
        assert connection.lost == [None]


@pytest.mark.parametrize("what", ["made", "read", "pause", "resume"])
@pytest.mark.parametrize("how", ["abort", "close"])
async def test_ends_within_a_callback(what: str, how: str) -> None:
    async with listening() as served:
        connection = Kept()
        connection.on[what] = lambda: connection.transport.abort() if how == "abort" else connection.transport.close()
        served._connection = lambda: served.connections.append(connection) or connection  # type: ignore[method-assign]
        client = socket.create_connection(served.listener.getsockname())
        served.clients.append(client)
        client.setblocking(False)
        await connection.until(lambda: "made" in connection.told)
        if what != "made":
            client.send(b"x")
            await connection.until(lambda: "read" in connection.told)
        if what in {"pause", "resume"}:
            connection.transport.write(BIG)
        reading = asyncio.ensure_future(received(client, 10**9))
        await asyncio.wait([reading], timeout=5)
        client.close()
        await connection.until(lambda: connection.lost)
        assert connection.told.count("lost") == 1
        assert reading.exception() is None or isinstance(reading.exception(), ConnectionResetError)


@pytest.mark.parametrize("what", ["read", "resume"])
async def test_a_defect_ends_its_connection_only(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as served:
        other, healthy = await served.connect()
        connection, client = await served.connect()
        connection.on[what] = lambda: 1 / 0
        if what == "resume":
            connection.transport.write(BIG)
            reading = asyncio.ensure_future(received(client, 10**9))
        else:
            client.send(b"x")
        await connection.until(lambda: connection.lost)
        assert isinstance(connection.lost[0], ZeroDivisionError)
        assert "a connection is closed because of a defect of ours" in caplog.text
        if what == "resume":
            await asyncio.wait([reading])
            assert len(reading.result()) <= len(BIG)
        healthy.send(b"still here")
        await other.until(lambda: other.got == b"still here")


async def test_one_connection_closes_another_in_the_same_turn() -> None:
    async with listening() as served:
        first, one = await served.connect()
        second, two = await served.connect()
        first.on["read"] = second.transport.abort
        second.on["read"] = first.transport.abort
        one.send(b"x")
        two.send(b"x")
        while not (first.lost or second.lost):
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert sorted([len(first.lost), len(second.lost)]) == [0, 1]


async def test_a_connection_that_cannot_be_watched_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening() as served:
        watch = Sockets.watch

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Sockets, "watch", full)
        client = socket.create_connection(served.listener.getsockname())
        served.clients.append(client)
        client.setblocking(False)
        assert await received(client, 1) == b""
        assert "a connection could not be accepted" in caplog.text
        monkeypatch.setattr(Sockets, "watch", watch)
        served.connections.clear()
        connection, client = await served.connect()
        client.send(b"x")
        await connection.until(lambda: connection.got)


FULL = """
import asyncio, logging, resource, socket
from gateway.serving.frontends.grpc_v2.transport import listening_socket as module
from tests.simulators.wires import listening
logging.basicConfig(format="%(message)s")
module.FULL_WAIT_S = 0.05

async def main():
    async with listening() as served:
        await served.connect()
        spare = [socket.socket() for _ in range(3)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(each.fileno() for each in spare) + 1, 4096))
        taken = []
        try:
            while True:
                taken.append(socket.socket())
        except OSError:
            pass
        waiting = spare.pop()
        waiting.connect(served.listener.getsockname())
        turns = 0
        while len(served.connections) == 1 and turns < 30:
            await asyncio.sleep(0.005)
            turns += 1
        assert len(served.connections) == 1
        for each in (*taken, *spare):
            each.close()
        while len(served.connections) == 1:
            await asyncio.sleep(0.005)
        waiting.send(b"patience")
        await served.connections[1].until(lambda: served.connections[1].got == b"patience")
        waiting.close()

asyncio.run(main())
"""


async def test_no_descriptor_is_left_for_a_while() -> None:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", FULL],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path.cwd(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 1 <= done.stderr.count("Too many open files; the next try is in 0.05 s") <= 50  # without pauses: thousands
