"""`/health`: for load balancers, which have no token. It reveals nothing about the fleet."""

from __future__ import annotations

from litestar import get

from fleet.controller.api.identity import Call, control_of
from fleet.controller.database import migrate


@get("/health/live", sync_to_thread=False, security=[], summary="Check that this replica answers")
def live() -> dict[str, str]:
    """Return that this replica answers."""
    return {"status": "live"}


@get("/health/ready", sync_to_thread=True, security=[], summary="Check that this replica can serve")
def ready(request: Call) -> dict[str, str]:
    """Return that the database answers; 503 if it does not."""
    migrate.revision(control_of(request).database)
    return {"status": "ready"}


HANDLERS = (live, ready)
