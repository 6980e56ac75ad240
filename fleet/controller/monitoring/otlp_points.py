"""OTLP messages as JSON (OTLP 1.x, "JSON Protobuf Encoding"). Pure.

Keys are in lowerCamelCase, 64-bit numbers are decimal text, enumerations are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from fleet.controller.monitoring.documents import LARGEST

CUMULATIVE = 2
"""AGGREGATION_TEMPORALITY_CUMULATIVE."""
INFORMATION, WARNING = 9, 13
"""SEVERITY_NUMBER_INFO, SEVERITY_NUMBER_WARN."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_TEXTS = {INFORMATION: "INFO", WARNING: "WARN"}

Attributes = Mapping[str, str | int | float | bool]


@dataclass(slots=True)
class Points:
    """Data points of one resource, by metric. `count`: how many.

    `admitted`: whether a series with these attributes is admitted. A series without attributes always is.
    """

    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    count: int = 0
    admitted: Callable[[str], bool] = bool

    def gauge(self, name: str, unit: str, value: float, at: datetime, *, attributes: Attributes | None = None) -> None:
        """Add a current value."""
        if self._may(attributes):
            self._of(name, unit, "gauge", {}).append(_number_point(value, at, attributes))

    def total(
        self,
        name: str,
        unit: str,
        value: float,
        at: datetime,
        *,
        attributes: Attributes | None = None,
        start: datetime | None = None,
    ) -> None:
        """Add a monotonic counter, which may be reset. `start`: since when it counts; None: unknown."""
        shape = {"aggregationTemporality": CUMULATIVE, "isMonotonic": True}
        point = _number_point(value, at, attributes)
        if start is not None:
            point["startTimeUnixNano"] = nanoseconds(start)
        if self._may(attributes):
            self._of(name, unit, "sum", shape).append(point)

    def histogram(
        self,
        name: str,
        unit: str,
        at: datetime,
        *,
        bounds: Sequence[float],
        counts: Sequence[int],
        total: float,
        attributes: Attributes | None = None,
        start: datetime | None = None,
    ) -> None:
        """Add a histogram. `counts` has one entry more than `bounds`, for values above the last bound."""
        point: dict[str, Any] = {
            "timeUnixNano": nanoseconds(at),
            "count": str(sum(counts)),
            "sum": total,
            "bucketCounts": [str(count) for count in counts],
            "explicitBounds": list(bounds),
            "attributes": attribute_list(attributes or {}),
        }
        if start is not None:
            point["startTimeUnixNano"] = nanoseconds(start)
        if self._may(attributes):
            self._of(name, unit, "histogram", {"aggregationTemporality": CUMULATIVE}).append(point)

    def document(self) -> list[dict[str, Any]]:
        """Return `ScopeMetrics.metrics`."""
        return list(self.metrics.values())

    def _may(self, attributes: Attributes | None) -> bool:
        return not attributes or self.admitted(" ".join(map(str, attributes.values())))

    def _of(self, name: str, unit: str, kind: str, shape: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.count += 1
        metric = self.metrics.setdefault(name, {"name": name, "unit": unit, kind: {**shape, "dataPoints": []}})
        points: list[dict[str, Any]] = metric[kind]["dataPoints"]
        return points


def log_record(
    name: str, body: str, at: datetime, observed: datetime, *, severity: int, attributes: Attributes
) -> dict[str, Any]:
    """Return a log record. `at`: time by the clock of its source; `observed`: time by the controller's clock."""
    return {
        "timeUnixNano": nanoseconds(at),
        "observedTimeUnixNano": nanoseconds(observed),
        "severityNumber": severity,
        "severityText": _TEXTS[severity],
        "eventName": name,
        "body": {"stringValue": body},
        "attributes": attribute_list(attributes),
    }


def resource(attributes: Attributes) -> dict[str, Any]:
    """Return the resource that the data describe."""
    return {"attributes": attribute_list(attributes)}


def attribute_list(attributes: Attributes) -> list[dict[str, Any]]:
    """Return `KeyValue`s in the order of their names."""
    return [{"key": name, "value": _any_value(value)} for name, value in sorted(attributes.items())]


def nanoseconds(at: datetime) -> str:
    """Return nanoseconds since 1970 as text, limited to the range from 0 to what 64 bits hold."""
    age = at - _EPOCH
    whole = (age.days * 86_400 + age.seconds) * 1_000_000_000 + age.microseconds * 1_000
    return str(min(max(whole, 0), LARGEST))


def request(signal: str, pieces: Iterable[bytes]) -> bytes:
    """Return the body of a POST: `signal` is resourceMetrics or resourceLogs, `pieces` its entries."""
    return b'{"' + signal.encode() + b'":[' + b",".join(pieces) + b"]}"


def _number_point(value: float, at: datetime, attributes: Attributes | None) -> dict[str, Any]:
    whole = isinstance(value, int) and -LARGEST <= value <= LARGEST
    number = {"asInt": str(int(value))} if whole else {"asDouble": float(value)}
    named = {"attributes": attribute_list(attributes)} if attributes else {}
    return {"timeUnixNano": nanoseconds(at), **number, **named}


def _any_value(value: str | float) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -LARGEST <= value <= LARGEST:
        return {"intValue": str(value)}
    return {"doubleValue": float(value)} if isinstance(value, int | float) else {"stringValue": value}
