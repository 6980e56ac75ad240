"""Telemetry of devices as OTLP: vitals and statistics become metrics, events and updates become logs. Pure.

| metric | of | attributes |
| --- | --- | --- |
| `edge.device.temperature` (Cel), `edge.device.power` (W) | vitals | `zone`, `rail` |
| `edge.device.memory.available` (By), `edge.device.throttled` (1) | vitals | |
| `edge.gateway.memory.resident` (By), `edge.agent.store.size` (By) | vitals | |
| `edge.agent.spool.records`, `edge.agent.spool.gaps`, `edge.agent.spool.size_bytes` | vitals | |
| `edge.model.requests`, `.executions`, `.failed_runs`, `.compared`, `.disagreed` | statistics | `model`, `version` |
| `edge.model.inference_time` (s), `.weight` (%), `.request_duration` (s) | statistics | `model`, `version` |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice, pairwise
from typing import Any

from fleet.controller.database.tail import ReceivedRow
from fleet.controller.monitoring.documents import count, mapping, number, numbers, text
from fleet.controller.monitoring.otlp_points import INFORMATION, WARNING, Points, log_record, resource
from fleet.controller.monitoring.readings import GAVE_UP


class Names:
    """Names that devices report: models, versions, zones, rails. Each is a time series in the collector.

    A lying device could create millions. `limit`: names by device and day (UTC); `left`: data points left out so far.
    Used by one thread.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self.left = limit, 0
        self._day: date | None = None
        self._known: dict[str, set[str]] = {}

    def of(self, device: str, at: datetime) -> Callable[[str], bool]:
        """Return a predicate: whether the device may use a name. `at`: when its data were received."""
        if at.date() != self._day:
            self._day = at.date()
            self._known.clear()
        known = self._known.setdefault(device, set())

        def admitted(name: str) -> bool:
            if name not in known and len(known) >= self._limit:
                self.left += 1
                return False
            known.add(name)
            return True

        return admitted


SCOPE = {"name": "edge-fleet"}
METRICS, LOGS = "resourceMetrics", "resourceLogs"
PIECE_ROWS = 50
"""Most rows of one device in one piece. Requests consist of pieces."""
ATTRIBUTES_LIMIT = 48
BUCKETS_LIMIT = 128
NS = 1e9
_GAUGES = (
    ("memory_available_bytes", "edge.device.memory.available", "By"),
    ("rss_bytes", "edge.gateway.memory.resident", "By"),
    ("store_bytes", "edge.agent.store.size", "By"),
)
_TOTALS = ("requests", "executions", "failed_runs", "compared", "disagreed")


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a request: `count` data points or log records of one resource, as JSON."""

    signal: str
    content: bytes
    count: int


def pieces(rows: Iterable[ReceivedRow], names: Names) -> Iterator[Piece]:
    """Yield pieces per device. Rows without data for OTLP are ignored. `names`: the limit on reported names."""
    by_device: dict[str, list[ReceivedRow]] = {}
    for received in rows:
        by_device.setdefault(received.device, []).append(received)
    for device, own in by_device.items():
        rest = iter(own)
        while chunk := list(islice(rest, PIECE_ROWS)):
            yield from _pieces(device, chunk, names)


def _pieces(device: str, rows: Sequence[ReceivedRow], names: Names) -> Iterator[Piece]:
    points, records = Points(admitted=names.of(device, rows[0].received)), list[dict[str, Any]]()
    for received in rows:
        document = mapping(received.row.document)
        if received.stream == "vitals":
            _vitals(points, document, received.row.at)
        elif received.stream == "statistics":
            _statistics(points, document, received.row.at)
        elif received.stream in {"events", "updates"}:
            records.append(_record(received, document))
    of = resource({"service.name": "edge-gateway", "service.instance.id": text(device), "device.id": text(device)})
    if points.count:
        metrics = {"resource": of, "scopeMetrics": [{"scope": SCOPE, "metrics": points.document()}]}
        yield Piece(METRICS, encoded(metrics), points.count)
    if records:
        logs = {"resource": of, "scopeLogs": [{"scope": SCOPE, "logRecords": records}]}
        yield Piece(LOGS, encoded(logs), len(records))


def encoded(document: Mapping[str, Any]) -> bytes:
    """Return compact JSON."""
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _vitals(points: Points, document: Mapping[str, Any], at: datetime) -> None:
    for zone, celsius in numbers(document.get("temperatures_c")):
        points.gauge("edge.device.temperature", "Cel", celsius, at, attributes={"zone": zone})
    for rail, watts in numbers(document.get("power_watts")):
        points.gauge("edge.device.power", "W", watts, at, attributes={"rail": rail})
    for key, name, unit in _GAUGES:
        value = count(document.get(key))
        if value is not None:
            points.gauge(name, unit, value, at)
    if isinstance(document.get("throttled"), bool):
        points.gauge("edge.device.throttled", "1", int(document["throttled"]), at)
    for key in ("records", "gaps", "size_bytes"):
        value = count(mapping(document.get("spool")).get(key))
        if value is not None:
            points.gauge(f"edge.agent.spool.{key}", "By" if key == "size_bytes" else "1", value, at)


def _statistics(points: Points, document: Mapping[str, Any], at: datetime) -> None:
    named = {"model": text(document.get("model")), "version": text(document.get("version"))}
    if not named["model"]:
        return
    for key in _TOTALS:
        value = count(document.get(key))
        if value is not None:
            points.total(f"edge.model.{key}", "1", value, at, attributes=named)
    inference_ns, weight = count(document.get("infer_ns")), number(document.get("weight"))
    if inference_ns is not None:
        points.total("edge.model.inference_time", "s", inference_ns / NS, at, attributes=named)
    if weight is not None:
        points.gauge("edge.model.weight", "%", weight, at, attributes=named)
    _latency(points, document, at, named)


def _latency(points: Points, document: Mapping[str, Any], at: datetime, named: Mapping[str, str]) -> None:
    """Add the latency histogram if bounds and counts are consistent. Receivers refuse the whole request otherwise."""
    bounds, counts, total_ns = (
        document.get("latency_bounds_ns"),
        document.get("latency_counts"),
        count(document.get("latency_ns")),
    )
    if not isinstance(bounds, list) or not isinstance(counts, list) or total_ns is None:
        return
    limits, filled = [count(bound) for bound in bounds[:BUCKETS_LIMIT]], [count(each) for each in counts]
    known = [bound for bound in limits if bound is not None]
    whole = [each for each in filled if each is not None]
    fits = len(known) == len(bounds) and len(whole) == len(counts) == len(known) + 1 and sum(whole) < 2**63
    if fits and all(low < high for low, high in pairwise(known)):
        seconds = [bound / NS for bound in known]
        points.histogram(
            "edge.model.request_duration", "s", at, bounds=seconds, counts=whole, total=total_ns / NS, attributes=named
        )


def _record(received: ReceivedRow, document: Mapping[str, Any]) -> dict[str, Any]:
    state, problem = text(document.get("state")), text(document.get("problem"))
    failure = mapping(document.get("failure"))
    severity = WARNING if state in GAVE_UP or problem else INFORMATION
    words = (text(document.get("slot")), text(document.get("version")), state, text(failure.get("reason")), problem)
    body = " ".join(word for word in (text(received.row.kind), *words) if word)
    name = f"edge.device.{text(received.row.kind)}"
    return log_record(
        name, body, received.row.at, received.received, severity=severity, attributes=_attributes(document)
    )


def _attributes(document: Mapping[str, Any]) -> dict[str, str | float]:
    """Return the texts and numbers of a document, and those of its objects under joined names."""
    found: dict[str, str | float] = {}
    for name, value in document.items():
        inner = value.items() if isinstance(value, dict) else [("", value)]
        for key, entry in islice(inner, ATTRIBUTES_LIMIT):
            kept = text(entry) if isinstance(entry, str) else number(entry)
            if kept is not None:
                found[text(f"{name}.{key}" if key else name)] = kept
    return dict(islice(found.items(), ATTRIBUTES_LIMIT))
