"""Times as programs read them."""

from __future__ import annotations

from datetime import UTC, datetime


def moment(at: datetime | None) -> str | None:
    """RFC 3339 in UTC, microseconds where there are any."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z") if at else None
