"""`/health`: for load balancers, which have no token. Tells nothing of the fleet."""

from __future__ import annotations

from litestar import get

from fleet.api.identity import Call, control_of
from fleet.database import migrate


@get("/health/live", sync_to_thread=False, security=[], summary="Whether this replica answers")
def live() -> dict[str, str]:
    """It does."""
    return {"status": "live"}


@get("/health/ready", sync_to_thread=True, security=[], summary="Whether this replica can serve")
def ready(request: Call) -> dict[str, str]:
    """Its database answers; 503 where it does not."""
    migrate.revision(control_of(request).database)
    return {"status": "ready"}


HANDLERS = (live, ready)
