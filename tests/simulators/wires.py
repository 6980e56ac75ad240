"""Recording protocol on our own transport, with peers on plain sockets."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from gateway.serving.frontends.grpc_v2.transport.listening_socket import SocketProtocol
from gateway.serving.frontends.grpc_v2.transport.sockets import Sockets, SocketTransport

BIG = random.Random(5).randbytes(800_000)


class Kept(SocketProtocol):
    """Protocol that records events and runs the test's callbacks."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(65_536))
        self.got, self.told = bytearray(), list[str]()
        self.lost: list[Exception | None] = []
        self.closed = 0
        self.moved = asyncio.Event()
        self.on: dict[str, Callable[[], Any]] = {}

    def connection_made(self, transport: Any) -> None:
        self.transport: SocketTransport = transport
        self._tell("made")

    def receive(self, data: memoryview) -> int:
        self.got += data
        self._tell("read")
        return 0

    def pause_writing(self) -> None:
        self._tell("pause")

    def resume_writing(self) -> None:
        self._tell("resume")

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.append(error)
        self._tell("lost")

    def socket_closed(self) -> None:
        self.closed += 1

    def _tell(self, what: str) -> None:
        self.told.append(what)
        self.moved.set()
        self.on.get(what, lambda: None)()

    async def until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            self.moved.clear()
            await self.moved.wait()


class Served:
    """`Sockets` with one listener, and the connections to it."""

    def __init__(self, family: int, transport: Callable[..., SocketTransport]) -> None:
        self.connections: list[Kept] = []
        self.on: dict[str, Callable[[], Any]] = {}
        self.listener = socket.socket(family)
        self.listener.bind(("127.0.0.1", 0) if family == socket.AF_INET else "")
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)  # accepted sockets inherit it
        self.listener.setblocking(False)
        self.listener.listen()
        self.before, self.after = list[int](), list[int]()
        self.sockets = Sockets(lambda: self.before.append(1), lambda: self.after.append(1))
        self.sockets.listen(self.listener, transport, lambda *_: self._connection())
        self.clients: list[socket.socket] = []

    async def connect(self, *, small: bool = False) -> tuple[Kept, socket.socket]:
        """Open a connection. Return our side's protocol and the peer's socket."""
        client = socket.socket(self.listener.family)
        if small:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        self.clients.append(client)
        count = len(self.connections)
        await asyncio.get_running_loop().sock_connect(client, self.listener.getsockname())
        while len(self.connections) == count or not self.connections[-1].told:
            await asyncio.sleep(0)
        return self.connections[-1], client

    def _connection(self) -> Kept:
        self.connections.append(Kept())
        self.connections[-1].on = dict(self.on)
        return self.connections[-1]


@asynccontextmanager
async def listening(
    family: int = socket.AF_INET, transport: Callable[..., SocketTransport] = SocketTransport
) -> AsyncIterator[Served]:
    served = Served(family, transport)
    try:
        yield served
    finally:
        served.sockets.close()
        for client in served.clients:
            client.close()
        await asyncio.sleep(0)
        made = [connection for connection in served.connections if "made" in connection.told]
        assert all(connection.told.count("lost") == 1 for connection in made)
        assert all(connection.transport._socket.fileno() == -1 for connection in made)
        assert all(connection.closed == 1 for connection in served.connections)
        assert served.sockets.lingering == 0
        assert len(served.before) == len(served.after)


async def received(client: socket.socket, size: int) -> bytes:
    got, loop = bytearray(), asyncio.get_running_loop()
    while len(got) < size and (part := await loop.sock_recv(client, 100_000)):
        got += part
    return bytes(got)
