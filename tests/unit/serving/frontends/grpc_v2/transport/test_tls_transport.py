"""TLS on our own transport: the same promises as without."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from gateway.common.domain.access import Security
from gateway.serving.frontends.grpc_v2.transport.tls_transport import TlsTransport
from gateway.serving.frontends.tls import server_context
from tests.simulators.authority import Authority
from tests.simulators.wires import BIG, Kept, Served, listening

pytestmark = pytest.mark.asyncio
AUTHORITY = Authority()
LIMIT_S = 0.05


@pytest.fixture
def limit_s() -> float:
    """Return the longest handshake."""
    return 60.0


@pytest.fixture
def security() -> Security:
    return Security(*AUTHORITY.issue("localhost"))


@asynccontextmanager
async def secured(security: Security, limit_s: float) -> AsyncIterator[Served]:
    context = server_context(security, protocol="h2")
    async with listening(transport=partial(TlsTransport, context, limit_s)) as served:
        yield served


@asynccontextmanager
async def shaken(served: Served, **more: Any) -> AsyncIterator[tuple[Kept, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield our side's protocol, and the peer's streams."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
    context.set_alpn_protocols(["h2"])
    host, port = served.listener.getsockname()
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname="localhost", **more)
    connection = served.connections[-1]
    await connection.until(lambda: "made" in connection.told)
    try:
        yield connection, reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


async def test_what_is_written_arrives_in_order(security: Security, limit_s: float) -> None:
    async with secured(security, limit_s) as served, shaken(served) as (connection, reader, _):
        connection.transport.write(BIG[:10])
        connection.transport.writelines([BIG[10:20], memoryview(BIG)[20:50_000], b"", BIG[50_000:50_001]])
        connection.transport.writelines([])
        connection.transport.write(BIG[50_001:])
        assert await reader.readexactly(len(BIG)) == BIG
        await connection.until(lambda: connection.told.count("pause") == connection.told.count("resume"))


async def test_what_is_read(security: Security, limit_s: float) -> None:
    """Records do not end where reads do."""
    async with secured(security, limit_s) as served, shaken(served) as (connection, _, writer):
        for place in range(0, len(BIG), 30_001):
            writer.write(BIG[place : place + 30_001])
        await writer.drain()
        await connection.until(lambda: len(connection.got) == len(BIG))
        assert connection.got == BIG


async def test_closing_sends_what_waits_and_says_goodbye(security: Security, limit_s: float) -> None:
    async with secured(security, limit_s) as served, shaken(served) as (connection, reader, writer):
        connection.transport.write(BIG)
        connection.transport.close()
        connection.transport.close()
        connection.transport.write(b"not any more")
        assert await reader.read(-1) == BIG
        writer.close()
        await connection.until(lambda: connection.lost)


async def test_the_peer_says_goodbye(security: Security, limit_s: float) -> None:
    async with secured(security, limit_s) as served, shaken(served) as (connection, _, writer):
        writer.write(b"last")
        writer.close()
        await connection.until(lambda: connection.lost)
        assert (connection.got, connection.lost) == (b"last", [None])
        connection.transport.write(b"late")
        connection.transport.close()


async def test_the_peer_is_gone_without_goodbye(security: Security, limit_s: float) -> None:
    async with secured(security, limit_s) as served, shaken(served) as (connection, _, writer):
        writer.transport.abort()
        await connection.until(lambda: connection.lost)


async def test_damage(security: Security, limit_s: float) -> None:
    async with secured(security, limit_s) as served, shaken(served) as (connection, reader, _):
        connection.transport._process(memoryview(b"\x17\x03\x03\x00\x10" + bytes(16)))
        await connection.until(lambda: connection.lost)
        assert isinstance(connection.lost[0], ssl.SSLError)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await reader.readexactly(1)


@pytest.mark.parametrize("words", [b"", b"\x16", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"])
async def test_hands_that_are_not_shaken(security: Security, words: bytes) -> None:
    async with secured(security, LIMIT_S) as served:
        client = socket.create_connection(served.listener.getsockname())
        client.setblocking(False)
        served.clients.append(client)
        await asyncio.get_running_loop().sock_sendall(client, words)
        with contextlib.suppress(ConnectionError):
            while await asyncio.get_running_loop().sock_recv(client, 1000):
                pass
        (connection,) = served.connections
        assert connection.told == []


async def test_who_cannot_be_watched_is_let_go_for_good(security: Security, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, mishaps = asyncio.get_running_loop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _loop, context: mishaps.append(context))

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "max_user_watches")

    async with secured(security, LIMIT_S) as served:
        monkeypatch.setattr(served.sockets, "watch", full)
        client = socket.create_connection(served.listener.getsockname())
        client.setblocking(False)
        served.clients.append(client)
        assert await loop.sock_recv(client, 1) == b""
        await asyncio.sleep(2 * LIMIT_S)
        assert not mishaps


async def test_ends_within_a_callback(security: Security, limit_s: float) -> None:
    for what in ("made", "read", "pause"):
        for how in ("abort", "close"):
            async with secured(security, limit_s) as served:
                served.on[what] = lambda how=how: getattr(served.connections[-1].transport, how)()
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    async with shaken(served) as (connection, reader, writer):
                        writer.write(b"x" * 40_000)
                        if what == "pause":
                            connection.transport.write(BIG)
                        with contextlib.suppress(ConnectionError, ssl.SSLError):
                            await reader.read(-1)
                connection = served.connections[-1]
                await connection.until(lambda connection=connection: connection.lost)
                assert connection.told.count("lost") == 1
