"""Sockets, TLS and uvicorn's HTTP protocol, without uvicorn's own loop, ticks and signal handlers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING, cast

from gateway.domain.access import Address
from gateway.wire.asgi import Application
from gateway.wire.bounds import PortBounds
from gateway.wire.handshakes import Handshakes, Terms
from gateway.wire.listening import bound_address, listening

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from gateway.wire.connection import BoundedConnection

ACCEPTED_AT_ONCE = 16
"""Connections that asyncio accepts in one turn of the loop: each takes up to 0.5 ms until it is set up."""
CLOSING_S = 1.0
"""How long connections get to send what is already written, once their requests have ended."""

Connect = Callable[["Config", "ServerState"], "BoundedConnection"]
Build = Callable[[], tuple[Application, Connect]]
"""The application, and what makes a connection to it; called on a thread: it may load much."""

_LOADING = threading.Lock()
"""Held while a port loads its libraries and builds its application: one port of the process at a time. An application
of Litestar tries to import plugins of packages that may not be installed. A second thread that imports such a plugin
while the first one's import fails gets "cannot import name", which Litestar does not expect."""


class Listeners:
    """Any number of addresses, and who is connected to them. `listen` once, `answer` once, `stop` once and when neither
    is under way. TLS guards TCP; a UNIX socket is guarded by its permissions."""

    def __init__(self, bounds: PortBounds) -> None:
        self._bounds = bounds
        self._sockets: list[socket] = []
        self._servers: list[asyncio.Server | Handshakes] = []
        self._paths: list[Path] = []
        self._state: ServerState | None = None

    def listen(self, addresses: Sequence[Address], table: str, key: str = "listen") -> tuple[Address, ...]:
        """Listen on `addresses`, which `key` of `table` of the configuration holds; where that is, port 0 resolved. Who
        connects waits in the kernel's backlog until `answer`. Raises UnreachableError; then nothing listens."""
        backlog, mode = self._bounds.backlog, self._bounds.unix_socket_mode
        with listening(addresses, table, key, backlog=backlog, unix_mode=mode) as sockets:
            self._sockets = sockets
        bound = tuple(bound_address(listener) for listener in self._sockets)
        self._paths = [Path(address.path) for address in bound if address.path]
        return bound

    async def answer(self, build: Build, terms: Terms | None) -> None:
        """Answer those who wait and whoever comes; over TCP by TLS on these terms, where there are any."""
        config, connect = await asyncio.to_thread(self._load, build)
        from gateway.wire.connection import PortState

        self._state = state = PortState()
        for listener in self._sockets:
            if terms and listener.family != AF_UNIX:
                self._servers.append(Handshakes(listener, lambda: connect(config, state), terms))
                continue
            server = await asyncio.get_running_loop().create_server(
                lambda: connect(config, state),
                sock=listener,
                backlog=ACCEPTED_AT_ONCE,
            )
            listener.listen(self._bounds.backlog)  # asyncio has called it with what it accepts at once
            self._servers.append(server)

    async def somebody(self) -> None:
        """Until the first peer has connected; it waits in the backlog. UNIX or TCP alike."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        for listener in self._sockets:
            loop.add_reader(listener, came.set)
        try:
            await came.wait()
        finally:
            for listener in self._sockets:
                loop.remove_reader(listener)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, let requests finish within `grace_s`, cut off the rest."""
        for server in self._servers:
            server.close()
        for listener in self._sockets:  # those that were never answered; the others are closed by now
            listener.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        if self._state is not None:
            await self._drain(self._state, grace_s)
        with suppress(TimeoutError):  # from Python 3.12 on this waits for peers that have not shaken hands yet, too
            async with asyncio.timeout(CLOSING_S):
                for server in self._servers:
                    await server.wait_closed()

    def _load(self, build: Build) -> tuple[Config, Connect]:
        with _LOADING:
            app, connect = build()
            return self._config(app), connect

    def _config(self, app: Application) -> Config:
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
        return config

    async def _drain(self, state: ServerState, grace_s: float) -> None:
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            _, late = await asyncio.wait(set(state.tasks), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._close(cast("set[BoundedConnection]", set(state.connections)))

    async def _close(self, connections: set[BoundedConnection]) -> None:
        """Connections close themselves after their answer; those whose peer does not read it are cut off."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                for connection in connections:
                    await connection.lost.wait()
        for connection in connections:
            connection.transport.abort()
