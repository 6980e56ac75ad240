"""Times in machine-readable form."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import overload


@overload
def moment(at: datetime) -> str: ...
@overload
def moment(at: datetime | None) -> str | None: ...
def moment(at: datetime | None) -> str | None:
    """Return RFC 3339 in UTC, with microseconds if there are any; None for None."""
    return at.astimezone(timezone.utc).isoformat().replace("+00:00", "Z") if at else None
