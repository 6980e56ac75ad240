"""OTLP's messages as JSON (OTLP 1.x, "JSON Protobuf Encoding"): keys in lowerCamelCase, 64-bit numbers as decimal text,
enumerations as numbers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fleet.watch.documents import LARGEST

CUMULATIVE = 2
"""AGGREGATION_TEMPORALITY_CUMULATIVE."""
INFORMATION, WARNING = 9, 13
"""SEVERITY_NUMBER_INFO, SEVERITY_NUMBER_WARN."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TEXTS = {INFORMATION: "INFO", WARNING: "WARN"}

Attributes = Mapping[str, str | int | float | bool]


@dataclass(slots=True)
class Points:
    """Data points of one resource, by metric. `count` of them. `admitted`: whether a series of this name may be; those
    without attributes always may."""

    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    count: int = 0
    admitted: Callable[[str], bool] = bool

    def gauge(self, name: str, unit: str, value: float, at: datetime, *, attributes: Attributes | None = None) -> None:
        """A value as it is now."""
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
        """A counter that only grows, until it begins anew. `start`: since when it counts; None: nobody says."""
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
        """`counts` has one entry more than `bounds`, for what lies above the last."""
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
        """`ScopeMetrics.metrics`."""
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
    """An event: `at` by the clock of whom it happened to, `observed` by ours."""
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
    """Of whom it is told."""
    return {"attributes": attribute_list(attributes)}


def attribute_list(attributes: Attributes) -> list[dict[str, Any]]:
    """`KeyValue`s in the order of their names."""
    return [{"key": name, "value": _any_value(value)} for name, value in sorted(attributes.items())]


def nanoseconds(at: datetime) -> str:
    """Since 1970, as text; a time that 64 bits do not hold, or that was before, becomes the nearest that fits."""
    age = at - _EPOCH
    whole = (age.days * 86_400 + age.seconds) * 1_000_000_000 + age.microseconds * 1_000
    return str(min(max(whole, 0), LARGEST))


def request(signal: str, pieces: Iterable[bytes]) -> bytes:
    """The body of a POST: `signal` is resourceMetrics or resourceLogs, `pieces` its entries."""
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
