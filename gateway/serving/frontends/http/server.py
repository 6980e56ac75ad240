"""HTTP port of a frontend, with its own certificate, application and peers."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from gateway.common.domain.access import Address, Security
from gateway.common.wire.asgi import Application
from gateway.common.wire.handshakes import HandshakeLimits
from gateway.common.wire.listeners import Connect, Listeners
from gateway.serving.domain.shares import caller_key, is_loopback
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.connections import ConnectionPlaces
from gateway.serving.frontends.http.bounds import Bounds, Refuse
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.tls import server_context

if TYPE_CHECKING:
    from gateway.serving.frontends.http.connection import HttpConnection
    from gateway.serving.frontends.http.direct import Direct


class HttpServer:
    """HTTP server of one ASGI application on any number of addresses.

    Call `start` once, `answer` once, and `stop` once while neither is under way.
    """

    def __init__(
        self,
        settings: Bounds,
        security: Security,
        table: str,
        refuse: Refuse,
        build: Callable[[], Application | tuple[Application, Direct]],
        *,
        welcome: Callable[[Peer], bool] = lambda _: True,
        pools: Pools | None = None,
    ) -> None:
        """Set up the port. `table` of the configuration holds `listen`.

        `build` makes the application, and the part of it that serves direct requests if there is one, on a thread: it
        may load much. Peers that are not `welcome` will be refused, and have few connections of their own. The others
        have shares of `pools`.
        """
        self._settings, self._table = settings, table
        self.authentication = Authentication(table, security)
        self._security = security
        self._refuse, self._application, self._welcome = refuse, build, welcome
        self.pools, setting = pools or Pools(), f"[{table}] max_connections"
        self._handshakes = self.pools.make(f"{table} handshakes", setting, settings.max_connections)
        self._connections: ConnectionPlaces[HttpConnection] = ConnectionPlaces(
            self.pools.make(f"{table} connections", setting, settings.max_connections)
        )
        self.requests = self.pools.make(f"{table} requests", f"[{table}] max_requests", settings.max_requests)
        self.request_bytes = self.pools.make_bytes(
            f"{table} request bytes", f"[{table}] max_buffered_bytes", settings.max_buffered_bytes
        )
        self.requests.make_room = partial(self._connections.make_room, half_open=True)
        self._context: ssl.SSLContext | None = None
        self._listeners = Listeners(settings)

    async def start(self, addresses: Sequence[Address]) -> tuple[Address, ...]:
        """Listen on `addresses`. Return them with port 0 resolved. Raises ConfigurationError.

        Peers wait in the kernel's backlog until `answer`. TLS protects TCP; permissions protect a UNIX socket, and its
        callers are identified by their user id.
        """
        self._context = server_context(self._security, protocol="http/1.1")
        return self._listeners.listen(addresses, self._table)

    async def answer(self) -> None:
        """Answer waiting and new peers.

        Only this loads litestar and uvicorn: 0.12 s and 14 MiB. It does so on a thread because the event loop serves
        gRPC already (`python -m tests.performance.start`).
        """
        await self._listeners.answer(self._build, self._terms() if self._context else None)

    def secure(self, security: Security) -> Callable[[], None]:
        """Return a function that applies `security` to callers from the next request on, and to new handshakes.

        TLS and client certificates stay on or off. Raises as `server_context` does.
        """
        return partial(self._take, security, server_context(security, protocol="http/1.1"))

    def _take(self, security: Security, context: ssl.SSLContext | None) -> None:
        self._context = context
        self.authentication.replace(security)

    async def first_peer(self) -> None:
        """Wait until the first peer has connected, by UNIX socket or TCP. It stays in the backlog until `answer`."""
        await self._listeners.first_peer()

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, let requests finish within `grace_s`, then close the other connections."""
        await self._listeners.stop(grace_s)

    def _terms(self) -> HandshakeLimits:
        """Return the limits of handshakes: a caller's share of them, and a reserve for callers on this device."""
        pool, most = self._handshakes, self._handshakes.bounds.total

        def begins(key: str) -> bool:
            refusal = pool.take(key, local=is_loopback(key))
            if refusal is not None:
                pool.count(key, refusal)
            return refusal is None

        return HandshakeLimits(
            lambda: cast("ssl.SSLContext", self._context),  # TLS stays on
            self._settings.header_timeout_s,
            most,
            most,
            group=lambda address: caller_key(address=address),
            begins=begins,
            ended=lambda key: pool.give(key, local=is_loopback(key)),
        )

    def _build(self) -> tuple[Application, Connect]:
        from gateway.serving.frontends.http.connection import HttpConnection
        from gateway.serving.frontends.http.direct import DirectConnection

        built = self._application()
        kept = (self._settings, self._refuse, self._welcome, self._connections)
        if isinstance(built, tuple):
            app, direct = built
            return app, lambda config, state: DirectConnection(direct, config, state, *kept)
        return built, lambda config, state: HttpConnection(config, state, *kept)
