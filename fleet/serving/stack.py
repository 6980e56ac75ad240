"""The parts in their order: what costs least refuses first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from fleet.serving.asgi import Application, Receive, Scope, Send
from fleet.serving.bodies import Bodies, BodyBound
from fleet.serving.identity import Identity, Recognition
from fleet.serving.proxies import read_proxies
from fleet.serving.rates import Rates
from fleet.serving.records import Records
from fleet.serving.settings import ServingSettings

Bound = Callable[[Scope], BodyBound]


def stacked(
    app: Application,
    recognition: Recognition,
    settings: ServingSettings,
    counts: Counter[str],
    bound: Bound | None = None,
) -> Application:
    """`app` behind request numbers and log, identity, rates and body bounds. `bound`: of a request's body, by route.

    `counts` hears of what was refused or ignored, by reason. Raises ConfigurationError for proxies that are none.
    """
    usual = BodyBound(settings.max_body_bytes, settings.body_timeout_s)
    bounded = Bodies(app, bound or (lambda _: usual), settings)
    limited = Rates(bounded, settings.rates, counts)
    known = Identity(limited, recognition, read_proxies(settings.proxy.trusted), settings.proxy, counts)
    return Records(known, settings.max_requests, counts)


def mounted(app: Application, mounts: dict[str, Application]) -> Application:
    """What lies below a prefix ("/repository/") is another application's, which sees the path without it."""

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        for prefix, inner in mounts.items():
            if path.startswith(prefix):
                await inner({**scope, "path": path[len(prefix) - 1 :]}, receive, send)
                return
        await app(scope, receive, send)

    return route
