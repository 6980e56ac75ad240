"""Duration and status of requests by route. It is the outermost layer of the server, so that refusals count, too."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from fleet.controller.serving.asgi import Application, Message, Receive, Scope, Send

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets. One more bucket counts longer requests."""
OTHER = "other"
SELF = frozenset({"assignment", "telemetry", "inventory", "certificate", "diagnostics"})
RESOURCES = frozenset(
    {
        "alerts",
        "audit",
        "backup",
        "changes",
        "devices",
        "diagnostics",
        "enrol",
        "enrolments",
        "events",
        "releases",
        "rollouts",
    }
    | {"telemetry", "tokens"}
)
PLACES = frozenset({"health", "metrics", "repository", "schema"})


@dataclass(slots=True)
class Durations:
    """Histogram of one route. `counts` has one entry more than `BOUNDS_S`."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, took_s: float) -> None:
        """Count one request."""
        self.counts[bisect_left(BOUNDS_S, took_s)] += 1
        self.total_s += took_s


class Timing:
    """Counters by route: `ended` by status as well (0: no response), `received_bytes` and `durations`.

    The server's thread changes them; any thread may read them.
    """

    def __init__(self) -> None:
        self.ended: Counter[tuple[str, int]] = Counter()
        self.received_bytes: Counter[str] = Counter()
        self.durations: dict[str, Durations] = {}

    def around(self, app: Application) -> Application:
        """Wrap the application so that each request is counted."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                await self._serve(app, scope, receive, send)
            else:
                await app(scope, receive, send)

        return serve

    async def _serve(self, app: Application, scope: Scope, receive: Receive, send: Send) -> None:
        route, status, began_s = route_of(str(scope["path"])), 0, time.perf_counter()

        async def counted() -> Message:
            message = await receive()
            self.received_bytes[route] += len(message.get("body", b""))
            return message

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await app(scope, counted, watched)
        finally:
            self.ended[route, status] += 1
            self.durations.setdefault(route, Durations()).add(time.perf_counter() - began_s)


def route_of(path: str) -> str:
    """Return the route of any path, out of a small fixed set of names."""
    parts = path.split("/", 4)
    if parts[1:3] == ["v1", "self"] and len(parts) > 3 and parts[3] in SELF:
        return f"/v1/self/{parts[3]}"
    if parts[1:2] == ["v1"] and len(parts) > 2 and parts[2] in RESOURCES:
        return f"/v1/{parts[2]}"
    return f"/{parts[1]}" if len(parts) > 1 and parts[1] in PLACES else OTHER
