"""Bounds on what one message may become."""

from __future__ import annotations

from collections.abc import Sized

from gateway.frontends.mqtt.inbound.payloads.errors import invalid

ROWS_LIMIT = 100_000
"""Most rows of one message."""
VALUES_LIMIT = 1_000_000
"""Most values of one message, rows times channels: 8 MB."""


def check_rows(rows: Sized | int) -> None:
    """Raise RequestError INVALID for more than ROWS_LIMIT rows."""
    count = rows if isinstance(rows, int) else len(rows)
    if count > ROWS_LIMIT:
        raise invalid(f"the payload has {count} rows; at most {ROWS_LIMIT} are taken in one message")
