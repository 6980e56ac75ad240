"""Composition of the middleware: the cheapest checks come first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fleet.controller.serving.asgi import Application, Receive, Scope, Send
from fleet.controller.serving.bodies import Bodies, BodyBound
from fleet.controller.serving.identity import PeerMiddleware, Recognition
from fleet.controller.serving.proxies import read_proxies
from fleet.controller.serving.rates import Rates
from fleet.controller.serving.records import AccessLog
from fleet.controller.serving.settings import ServingSettings

Bound = Callable[[Scope], BodyBound]


def stacked(
    app: Application,
    recognition: Recognition,
    settings: ServingSettings,
    counts: Counter[str],
    bound: Bound | None = None,
) -> Application:
    """Wrap `app` in request ids and access log, identity, rate limits and body limits. `bound`: body limit by route.

    `counts` counts refusals and ignored headers by reason. Raise ConfigurationError for invalid proxies.
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
