"""Listeners around a bare application; tests/contract/common/test_http_bounds.py has the bounds of all ports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.common.domain.access import Address
from gateway.common.domain.errors import UnreachableError
from gateway.common.wire.asgi import Application, Headers, Receive, Scope, Send, respond
from gateway.common.wire.connection import BoundedConnection
from gateway.common.wire.listeners import Listeners

pytestmark = pytest.mark.asyncio
LOOPBACK = Address("127.0.0.1", 0)
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@dataclass(frozen=True)
class Bounds:
    max_header_bytes: int = 4096
    backlog: int = 16
    header_timeout_s: float = 30.0
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    keep_alive_s: int = 30
    unix_socket_mode: int = 0o600


@dataclass(frozen=True)
class Said:
    status: int
    message: str
    headers: Headers = ()
    media_type: str = "text/plain"

    @property
    def body(self) -> bytes:
        return self.message.encode()


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer; /large is more than sockets hold."""
    if scope["path"] != "/large":
        await respond(Said(200, "hello"), send)
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(64):
        await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def start(listeners: Listeners, bounds: Bounds, app: Application) -> None:
    def connect(config: Config, state: ServerState) -> BoundedConnection:
        return BoundedConnection(config, state, bounds, Said)

    await listeners.answer(lambda: (app, connect), None)


@asynccontextmanager
async def serving(app: Application = hello, **changes: float) -> AsyncIterator[tuple[Listeners, Address]]:
    bounds = replace(Bounds(), **changes)
    listeners = Listeners(bounds)
    (address,) = listeners.listen([LOOPBACK], "http")
    await start(listeners, bounds, app)
    try:
        yield listeners, address
    finally:
        await listeners.stop(0)


async def heard(address: Address, sent: bytes) -> bytes:
    """Return everything until the other side closes."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(sent)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_an_answer_that_nobody_takes_is_given_up() -> None:
    async with serving(write_timeout_s=0.05) as (listeners, address):
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1)
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await reader.readexactly(12) == b"HTTP/1.1 200"
        await until(lambda: not listeners._state.connections)
        writer.close()


async def until(true: Callable[[], bool]) -> None:
    """Wait until this is true, bounded by the test's own time."""
    while not true():
        await asyncio.sleep(0.005)


@asynccontextmanager
async def waiting(grace_s: float) -> AsyncIterator[tuple[asyncio.Event, Awaitable[bytes], Awaitable[None]]]:
    """Yield a request in progress, and a stop that has begun."""
    proceed, inside = asyncio.Event(), asyncio.Event()

    async def slow(_: Scope, __: Receive, send: Send) -> None:
        inside.set()
        try:
            await proceed.wait()
        except asyncio.CancelledError:
            await respond(Said(503, "cut off"), send)
        else:
            await respond(Said(200, "done"), send)

    async with serving(slow) as (listeners, address):
        answer = asyncio.create_task(heard(address, REQUEST))
        await inside.wait()
        yield proceed, answer, asyncio.create_task(listeners.stop(grace_s))


async def test_a_stop_lets_requests_finish() -> None:
    async with waiting(grace_s=30) as (proceed, answer, stopped):
        await asyncio.sleep(0)
        proceed.set()
        assert (await answer).endswith(b"done")
        await stopped


async def test_and_cuts_off_what_takes_too_long() -> None:
    async with waiting(grace_s=0) as (_, answer, stopped):
        assert (await answer).endswith(b"cut off")
        await stopped


async def test_a_stop_before_the_answer_leaves_nothing(tmp_path: Path) -> None:
    listeners, path = Listeners(Bounds()), tmp_path / "x.sock"
    (address,) = listeners.listen([Address(path=str(path))], "http")
    reader, writer = await asyncio.open_unix_connection(address.path)
    await listeners.first_peer()
    await listeners.stop(0)
    with suppress(ConnectionResetError):  # Linux says this, or that it ends
        assert await reader.read() == b""
    writer.close()
    assert not path.exists()


async def test_what_cannot_be_had_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with pytest.raises(UnreachableError, match=r"^http\.listen: cannot listen on 192\.0\.2\.1:0"):
        Listeners(Bounds()).listen([Address(path=str(path)), Address("192.0.2.1", 0)], "http")
    assert not path.exists()
