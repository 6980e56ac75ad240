"""`/metrics`: Prometheus' page (fleet/METRICS.md)."""

from __future__ import annotations

from litestar import Response, get

from fleet.access import Action
from fleet.api.identity import ACTION, Call, allow
from fleet.watch.page import Page


@get(
    "/metrics",
    opt={ACTION: Action.METRICS_READ},
    sync_to_thread=True,
    media_type="text/plain",
    summary="What this replica counts, in Prometheus' text format",
)
def metrics(request: Call) -> Response[bytes]:
    """For a token with the role viewer or more. Numbers of the database are a moment old."""
    allow(request)
    page: Page = request.app.state.page
    content, content_type = page.render()
    return Response(content, headers={"content-type": content_type})


HANDLERS = (metrics,)
