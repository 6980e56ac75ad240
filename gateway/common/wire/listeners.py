"""Sockets, TLS and uvicorn's HTTP protocol, without uvicorn's own event loop, ticks and signal handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING, cast

from gateway.common.domain.access import Address
from gateway.common.timeouts import timeout
from gateway.common.wire.asgi import Application
from gateway.common.wire.bounds import ACCEPTED_PER_PASS, PortBounds
from gateway.common.wire.handshakes import HandshakeLimits, Handshakes
from gateway.common.wire.kept_listeners import KEPT
from gateway.common.wire.listening import bound_address, listening

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from gateway.common.wire.connection import BoundedConnection

FIRST_REQUEST_S = 0.25
"""Time for the first request of a new connection at a stop: without it, it would be closed without an answer."""
CLOSING_S = 1.0
"""Time for connections to send bytes already written, once their requests have ended."""

ACCEPTING_PASSES = 3
"""Passes of the event loop until asyncio has made the connection of a socket that it has accepted."""

Connect = Callable[["Config", "ServerState"], "BoundedConnection"]
Build = Callable[[], tuple[Application, Connect]]
"""Function that makes the application, and the factory of its connections; called on a thread: it may load much."""

_LOADING = threading.Lock()
"""Lock while a port loads its libraries and builds its application: one port of the process at a time.

An application of Litestar tries to import plugins of packages that may not be installed. A second thread that imports
such a plugin while the first one's import fails gets "cannot import name", which Litestar does not expect.
"""


class Listeners:
    """Listening sockets on any number of addresses, and the connections to them.

    Call `listen` once, `answer` once, and `stop` once while neither is under way. TLS protects TCP; permissions protect
    a UNIX socket.
    """

    def __init__(self, bounds: PortBounds) -> None:
        self._bounds = bounds
        self._sockets: list[socket] = []
        self._servers: list[asyncio.Server | Handshakes] = []
        self._paths: list[str] = []
        self._state: ServerState | None = None

    def listen(self, addresses: Sequence[Address], table: str, key: str = "listen") -> tuple[Address, ...]:
        """Listen on `addresses`, from `key` of `table` of the configuration. Return them with port 0 resolved.

        Peers wait in the kernel's backlog until `answer`. Raises UnreachableError; then nothing listens.
        """
        backlog, mode = self._bounds.backlog, self._bounds.unix_socket_mode
        with listening(addresses, table, key, backlog=backlog, unix_mode=mode) as sockets:
            self._sockets = sockets
        bound = tuple(bound_address(listener) for listener in self._sockets)
        self._paths = [address.path for address in bound if address.path]
        return bound

    async def answer(self, build: Build, terms: HandshakeLimits | None) -> None:
        """Answer waiting and new peers; over TCP by TLS on these terms, if there are any."""
        config, connect = await asyncio.to_thread(self._load, build)
        from gateway.common.wire.connection import PortState

        self._state = state = PortState()
        for listener in self._sockets:
            if terms and listener.family != AF_UNIX:
                self._servers.append(Handshakes(listener, lambda: connect(config, state), terms))
                continue
            server = await asyncio.get_running_loop().create_server(
                lambda: connect(config, state),
                sock=listener,
                backlog=ACCEPTED_PER_PASS,
            )
            listener.listen(self._bounds.backlog)  # asyncio has called it with the number that it accepts at once
            self._servers.append(server)

    async def first_peer(self) -> None:
        """Wait until the first peer has connected, by UNIX socket or TCP. It stays in the backlog until `answer`."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        for listener in self._sockets:
            loop.add_reader(listener, came.set)
        try:
            await came.wait()
        finally:
            for listener in self._sockets:
                loop.remove_reader(listener)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, let requests finish within `grace_s`, then close the other connections."""
        loop = asyncio.get_running_loop()
        for listener in self._sockets:
            if listener.fileno() >= 0:
                loop.remove_reader(listener)
        for _ in range(ACCEPTING_PASSES):
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        for listener in self._sockets:  # sockets without `answer`; the others are closed by now
            listener.close()
        for path in self._paths:
            KEPT.unlink(path)
        if self._state is not None:
            await self._drain(self._state, grace_s)
        with suppress(TimeoutError):  # from Python 3.12 on this waits for peers without a completed handshake, too
            async with timeout(CLOSING_S):
                for server in self._servers:
                    await server.wait_closed()

    def _load(self, build: Build) -> tuple[Config, Connect]:
        with _LOADING:
            app, connect = build()
            from uvicorn.config import Config

            config = Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=self._bounds.keep_alive_s,
                h11_max_incomplete_event_size=self._bounds.max_header_bytes,
            )
            config.load()
            return config, connect

    async def _drain(self, state: ServerState, grace_s: float) -> None:
        if any(each.cycle is None for each in cast("set[BoundedConnection]", state.connections)):
            await asyncio.sleep(min(FIRST_REQUEST_S, grace_s))
        for each in list(state.connections):
            each.shutdown()
        if state.tasks:
            _, late = await asyncio.wait(set(state.tasks), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        # Connections close themselves after their answer; those whose peer does not read it are aborted.
        connections = cast("set[BoundedConnection]", set(state.connections))
        with suppress(TimeoutError):
            async with timeout(CLOSING_S):
                for connection in connections:
                    await connection.lost.wait()
        for connection in connections:
            connection.transport.abort()
