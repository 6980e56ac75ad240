"""The listeners: sockets, TLS and uvicorn's HTTP protocol, without uvicorn's own loop, ticks and signal handlers."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fleet.serving.asgi import Application
from fleet.serving.proxies import read_proxies
from fleet.serving.settings import ServingSettings
from fleet.serving.tls import load_chain
from gateway.domain.access import Address
from gateway.domain.errors import ConfigurationError, UnreachableError

if TYPE_CHECKING:
    from fleet.serving.connection import Connection, Shared

CLOSING_S = 1.0
"""How long connections get to send what is already written, once their requests have ended."""


class Server:
    """An application on any number of addresses. `start` once, `stop` once. TLS guards TCP; a UNIX socket is guarded by
    its permissions."""

    def __init__(
        self,
        app: Application,
        settings: ServingSettings,
        counts: Counter[str],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._app, self._settings, self._counts, self._context = app, settings, counts, context
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []
        self._shared: Shared | None = None

    async def start(self, addresses: Sequence[Address]) -> tuple[Address, ...]:
        """Listen and answer; where that is, port 0 resolved. Raises ConfigurationError; then nothing listens."""
        for address in addresses:
            self._check_exposure(address)
        self._shared = self._share()
        try:
            return tuple([await self._serve(address, self._shared) for address in addresses])
        except BaseException:
            await self.stop(0)
            raise

    def renew(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Show another certificate to who connects from now on. Raises ConfigurationError."""
        if self._context:
            load_chain(self._context, certificate_pem, key_pem)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, let requests finish within `grace_s`, cut off the rest."""
        for server in self._servers:
            server.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
        if self._shared is not None:
            await self._drain(self._shared, grace_s)
        with suppress(TimeoutError):  # from Python 3.12 on this waits for peers that have not shaken hands yet, too
            async with asyncio.timeout(CLOSING_S):
                for server in self._servers:
                    await server.wait_closed()

    def _check_exposure(self, address: Address) -> None:
        if not (address.private or self._context or self._settings.proxy.trusted):
            problem = (
                f"listening on {address} without TLS would send tokens in the clear; set [listen] tls, "
                "or name the proxy in front in [serve.proxy] trusted, or listen on 127.0.0.1 or a UNIX socket"
            )
            raise ConfigurationError(problem, table="listen", key="addresses")

    def _share(self) -> Shared:
        from uvicorn.config import Config
        from uvicorn.server import ServerState

        from fleet.serving.connection import Shared

        config = Config(
            self._app,
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
        proxies = read_proxies(self._settings.proxy.trusted)
        return Shared(config, ServerState(), self._settings, proxies, self._counts)

    async def _serve(self, address: Address, shared: Shared) -> Address:
        from fleet.serving.connection import Connection

        loop, backlog = asyncio.get_running_loop(), self._settings.backlog
        try:
            if address.path:
                listener = _unix_listener(address.path, self._settings.unix_socket_mode)
                server = await loop.create_unix_server(lambda: Connection(shared), sock=listener, backlog=backlog)
                self._paths.append(Path(address.path))
            else:
                server = await loop.create_server(
                    lambda: Connection(shared),
                    address.host,
                    address.port,
                    backlog=backlog,
                    ssl=self._context,
                    ssl_handshake_timeout=self._settings.handshake_timeout_s if self._context else None,
                    ssl_shutdown_timeout=self._settings.handshake_timeout_s if self._context else None,
                )
        except OSError as error:
            problem = (
                f"cannot listen on {address}: {error.strerror or error}; stop what listens there, or choose another"
            )
            raise UnreachableError(problem, table="listen", key="addresses") from None
        self._servers.append(server)
        return address if address.path else Address(address.host, server.sockets[0].getsockname()[1])

    async def _drain(self, shared: Shared, grace_s: float) -> None:
        state = shared.state
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            _, late = await asyncio.wait(set(state.tasks), timeout=grace_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        await self._close(cast("set[Connection]", set(state.connections)))

    async def _close(self, connections: set[Connection]) -> None:
        """Connections close themselves after their answer; those whose peer does not read it are cut off."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                for connection in connections:
                    await connection.lost.wait()
        for connection in connections:
            connection.transport.abort()


def _unix_listener(path: str, mode: int) -> socket.socket:
    """A socket file that nobody listens on any more is replaced; bound without permissions for others, so that nobody
    connects between bind and chmod."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        _remove_stale(path)
        listener.bind(path)
        Path(path).chmod(mode)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def _remove_stale(path: str) -> None:
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CLOSING_S)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
