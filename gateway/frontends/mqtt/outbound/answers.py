"""JSON of results and errors (docs/pages/howto/results.md). Pure functions."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

import msgspec

from gateway.domain.errors import RequestError
from gateway.domain.infer import InferResponse
from gateway.domain.problem import error_text
from gateway.frontends.mqtt.outbound.contents import Line
from gateway.frontends.mqtt.outbound.inputs import Ready

TIMES_REMEMBERED = 256
"""Milliseconds whose text is remembered."""


def result(identity: str, ready: Ready, response: InferResponse, contents: Line) -> bytes:
    """Return a result: its contents, the version that ran, the sensor, and the time of its samples.

    A window tells how many samples are missing in it, and its longest gap, if there are any. A session tells its rows,
    and how many were added to them.
    """
    return msgspec.json.encode(
        {
            "id": identity,
            **contents,
            "model": response.model,
            "version": response.version,
            "variant": response.variant,
            "sensor": ready.sensor,
            "started_at": timestamp(ready.started_ns),
            "ended_at": timestamp(ready.ended_ns),
            **_gaps(ready),
            **_session(ready),
        }
    )


def _gaps(ready: Ready) -> dict[str, float]:
    window = ready.window
    if window is None:
        return {}
    missing = {"missing_samples": window.missing_rows} if window.missing_rows else {}
    return missing | ({"longest_gap_s": window.gap_ns / 1e9} if window.gap_ns > ready.gap_limit_ns else {})


def _session(ready: Ready) -> dict[str, int]:
    if ready.window is None or ready.padded_rows is None:
        return {}
    rows = {"rows": len(ready.window.rows)}
    return rows | ({"padded_samples": ready.padded_rows} if ready.padded_rows else {})


def error(identity: str, topic: str, refused: RequestError, correlation: str = "") -> bytes:
    """Return a refusal. `error` repeats `message` because clients of the inference protocol read `error`.

    `correlation` is that of a request that brought it in its body.
    """
    message = error_text(refused.message)
    line = {"id": identity, "topic": topic, "fault": refused.fault.value, "message": message, "error": message}
    return msgspec.json.encode(line | ({"correlation": correlation} if correlation else {}))


def timestamp(wall_ns: int) -> str:
    """Return a time since the epoch as ISO 8601 in UTC, in whole milliseconds."""
    return _written(wall_ns // 1_000_000)


@lru_cache(maxsize=TIMES_REMEMBERED)
def _written(wall_ms: int) -> str:
    """Return the text. Messages that arrive in the same millisecond share it."""
    moment = datetime.fromtimestamp(wall_ms / 1e3, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
