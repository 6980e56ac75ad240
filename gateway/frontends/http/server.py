"""The listeners: sockets, TLS and uvicorn's HTTP protocol, without uvicorn's own loop, ticks and signal handlers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from socket import AF_UNIX, socket
from typing import TYPE_CHECKING, cast

from gateway.domain.access import Address, Security
from gateway.frontends.http.bounds import Bounds, Refuse
from gateway.frontends.http.door import Application
from gateway.frontends.listening import bound_address, listening
from gateway.frontends.peer import Peer
from gateway.frontends.tls import server_context

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from gateway.frontends.http.connection import Connection

CLOSING_S = 1.0
"""How long connections get to send what is already written, once their requests have ended."""


class HttpServer:
    """An application on any number of addresses. `start` once, `answer` once, `stop` once and when neither is under
    way."""

    def __init__(
        self,
        settings: Bounds,
        security: Security,
        table: str,
        refuse: Refuse,
        build: Callable[[], Application],
        *,
        welcome: Callable[[Peer], bool] = lambda _: True,
    ) -> None:
        """Whoever is not `welcome`, and will be refused, has few connections of its own.

        `table` of the configuration holds `listen`; `build` makes the application, on a thread: it may load much."""
        self._settings, self._security, self._table = settings, security, table
        self._refuse, self._application, self._welcome = refuse, build, welcome
        self._context: ssl.SSLContext | None = None
        self._listeners: list[socket] = []
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []
        self._state: ServerState | None = None

    async def start(self, addresses: Sequence[Address]) -> tuple[Address, ...]:
        """Listen on `addresses`; where that is, port 0 resolved. Raises ConfigurationError.

        Who connects waits in the kernel's backlog until `answer`. TLS guards TCP; a UNIX socket is guarded by its
        permissions, and its callers are known by their user id.
        """
        self._context = server_context(self._security, protocol="http/1.1")
        settings, table = self._settings, self._table
        with listening(addresses, table, backlog=settings.backlog, unix_mode=settings.unix_socket_mode) as listeners:
            self._listeners = listeners
        bound = tuple(bound_address(listener) for listener in self._listeners)
        self._paths = [Path(address.path) for address in bound if address.path]
        return bound

    async def answer(self) -> None:
        """Answer those who wait and whoever comes. Only this loads litestar and uvicorn: 0.12 s and 14 MiB, on a thread
        because the loop serves gRPC already (`python -m tests.performance.start`)."""
        config = await asyncio.to_thread(self._build)
        for listener in self._listeners:
            await self._serve(listener, config, None if listener.family == AF_UNIX else self._context)

    async def somebody(self) -> None:
        """Until the first peer has connected; it waits in the backlog. UNIX or TCP alike."""
        loop, came = asyncio.get_running_loop(), asyncio.Event()
        for listener in self._listeners:
            loop.add_reader(listener, came.set)
        try:
            await came.wait()
        finally:
            for listener in self._listeners:
                loop.remove_reader(listener)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, let requests finish within `grace_s`, cut off the rest."""
        for server in self._servers:
            server.close()
        for listener in self._listeners:  # those that were never answered; the others are closed by now
            listener.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        if self._state is not None:
            await self._drain(self._state, grace_s)
        with suppress(TimeoutError):  # from Python 3.12 on this waits for peers that have not shaken hands yet, too
            async with asyncio.timeout(CLOSING_S):
                for server in self._servers:
                    await server.wait_closed()

    def _build(self) -> Config:
        from uvicorn.config import Config

        config = Config(
            self._application(),
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
            timeout_keep_alive=self._settings.keep_alive_s,
            h11_max_incomplete_event_size=self._settings.max_header_bytes,
        )
        config.load()
        return config

    async def _serve(self, listener: socket, config: Config, context: ssl.SSLContext | None) -> None:
        from uvicorn.server import ServerState

        from gateway.frontends.http.connection import Connection

        self._state = state = self._state or ServerState()
        server = await asyncio.get_running_loop().create_server(
            lambda: Connection(config, state, self._settings, self._refuse, self._welcome),
            sock=listener,
            backlog=self._settings.backlog,  # asyncio calls listen() again, with 100 where nothing is said
            ssl=context,
            ssl_handshake_timeout=self._settings.header_timeout_s if context else None,
        )
        self._servers.append(server)

    async def _drain(self, state: ServerState, grace_s: float) -> None:
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            _, late = await asyncio.wait(set(state.tasks), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._close(state)

    async def _close(self, state: ServerState) -> None:
        """Connections close themselves after their answer; those whose peer does not read it are cut off."""
        connections = cast("set[Connection]", set(state.connections))
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                for connection in connections:
                    await connection.lost.wait()
        for connection in connections:
            connection.transport.abort()
