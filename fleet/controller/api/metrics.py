"""`/metrics`: page for Prometheus (fleet/METRICS.md)."""

from __future__ import annotations

from litestar import Response, get

from fleet.controller.access import Action
from fleet.controller.api.identity import ACTION, Call, allow
from fleet.controller.monitoring.page import MetricsPage


@get(
    "/metrics",
    opt={ACTION: Action.METRICS_READ},
    sync_to_thread=True,
    media_type="text/plain",
    summary="Show this replica's metrics in Prometheus' text format",
)
def metrics(request: Call) -> Response[bytes]:
    """Return the metrics of this replica, for a token with the role viewer or more.

    Numbers from the database are some seconds old.
    """
    allow(request)
    page: MetricsPage = request.app.state.page
    content, content_type = page.render()
    return Response(content, headers={"content-type": content_type})


HANDLERS = (metrics,)
