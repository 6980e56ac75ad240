"""The controller's port: its certificate, its application, its peers, and the order of the middleware."""

from __future__ import annotations

import ssl
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from fleet.controller.serving.asgi import Application, Receive, Scope, Send
from fleet.controller.serving.bodies import Bodies, BodyBound
from fleet.controller.serving.identity import PeerMiddleware, Recognition
from fleet.controller.serving.proxies import read_proxies
from fleet.controller.serving.rates import Rates
from fleet.controller.serving.records import AccessLog
from fleet.controller.serving.settings import ServingSettings
from fleet.controller.serving.tls import load_chain
from gateway.common.domain.access import Address
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.retry import TokenBuckets
from gateway.common.wire.handshakes import HandshakeLimits
from gateway.common.wire.listeners import Connect, Listeners

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

    from fleet.controller.serving.connection import ControllerConnection

Bound = Callable[[Scope], BodyBound]


class Server:
    """An application on any number of addresses. `start` once, `stop` once.

    TCP is protected by TLS, a UNIX socket by its permissions.
    """

    def __init__(
        self,
        app: Application,
        settings: ServingSettings,
        counts: Counter[str],
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._app, self._settings, self._counts, self._context = app, settings, counts, context
        self._listeners = Listeners(settings)

    async def start(self, addresses: Sequence[Address]) -> tuple[Address, ...]:
        """Listen and serve. Return the addresses, with port 0 resolved.

        Raise ConfigurationError; then nothing listens.
        """
        for address in addresses:
            if not (address.private or self._context or self._settings.proxy.trusted):
                problem = (
                    f"listening on {address} without TLS would send tokens in the clear; set [listen] tls, "
                    "or name the proxy in front in [serve.proxy] trusted, or listen on 127.0.0.1 or a UNIX socket"
                )
                raise ConfigurationError(problem, table="listen", key="addresses")
        bound = self._listeners.listen(addresses, "listen", "addresses")
        async with AsyncExitStack() as undone:
            undone.push_async_callback(self.stop, 0)
            await self._listeners.answer(self._build, self._terms(self._context) if self._context else None)
            undone.pop_all()
        return bound

    def renew(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Use another certificate for new connections. Raise ConfigurationError."""
        if self._context:
            load_chain(self._context, certificate_pem, key_pem)

    async def stop(self, grace_s: float) -> None:
        """Accept no more connections, let requests finish within `grace_s`, then abort the rest."""
        await self._listeners.stop(grace_s)

    def _terms(self, context: ssl.SSLContext) -> HandshakeLimits:
        settings, rates = self._settings, self._settings.rates
        handshakes = TokenBuckets(rates.handshake_per_s, rates.handshake_burst, rates.tracked_limit)
        return HandshakeLimits(
            lambda: context,
            settings.handshake_timeout_s,
            settings.max_handshakes,
            settings.max_handshakes_per_address,
            read_proxies(settings.proxy.trusted).group,
            self._counts,
            lambda address: not handshakes.take(address, time.monotonic_ns()),
        )

    def _build(self) -> tuple[Application, Connect]:
        from fleet.controller.serving.connection import ControllerConnection, Shared

        shared = Shared(self._settings, read_proxies(self._settings.proxy.trusted), self._counts)

        def connect(config: Config, state: ServerState) -> ControllerConnection:
            return ControllerConnection(config, state, shared)

        return self._app, connect


def stacked(
    app: Application,
    recognition: Recognition,
    settings: ServingSettings,
    counts: Counter[str],
    bound: Bound | None = None,
) -> Application:
    """Wrap `app` in request ids and access log, identity, rate limits and body limits: the cheapest checks come first.

    `bound`: body limit by route. `counts` counts refusals and ignored headers by reason. Raise ConfigurationError for
    invalid proxies.
    """
    usual = BodyBound(settings.max_body_bytes, settings.body_timeout_s)
    bounded = Bodies(app, bound or (lambda _: usual), settings)
    limited = Rates(bounded, settings.rates, counts)
    known = PeerMiddleware(limited, recognition, read_proxies(settings.proxy.trusted), settings.proxy, counts)
    return AccessLog(known, settings.max_requests, counts)


def mounted(app: Application, mounts: dict[str, Application]) -> Application:
    """Route paths below a prefix ("/repository/") to another application, which gets the path without the prefix."""

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        for prefix, inner in mounts.items():
            if path.startswith(prefix):
                await inner({**scope, "path": path[len(prefix) - 1 :]}, receive, send)
                return
        await app(scope, receive, send)

    return route
