"""`/health`, for load balancers, which have no token, reveals nothing about the fleet. `/metrics`: fleet/METRICS.md."""

from __future__ import annotations

from litestar import Response, get

from fleet.controller.access import Action
from fleet.controller.api.conditions import operation
from fleet.controller.api.identity import Call, allow, control_of
from fleet.controller.database import migrate
from fleet.controller.monitoring.page import MetricsPage


@get("/health/live", sync_to_thread=False, security=[], summary="Check that this replica answers")
def live() -> dict[str, str]:
    """Return that this replica answers."""
    return {"status": "live"}


@get("/health/ready", sync_to_thread=True, security=[], summary="Check that this replica can serve")
def ready(request: Call) -> dict[str, str]:
    """Return that the database answers; 503 if it does not."""
    migrate.revision(control_of(request).database)
    return {"status": "ready"}


@operation(
    get,
    "/metrics",
    Action.METRICS_READ,
    "Show this replica's metrics in Prometheus' text format",
    media_type="text/plain",
)
def metrics(request: Call) -> Response[bytes]:
    """Return the metrics of this replica, for a token with the role viewer or more.

    Numbers from the database are some seconds old.
    """
    allow(request)
    page: MetricsPage = request.app.state.page
    content, content_type = page.render()
    return Response(content, headers={"content-type": content_type})


HANDLERS = (live, ready, metrics)
