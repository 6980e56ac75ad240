"""The controller's own metrics as OTLP, with the names of METRICS.md. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from fleet.controller.monitoring.otlp_devices import METRICS, SCOPE, Piece, encoded
from fleet.controller.monitoring.otlp_points import Points, resource
from fleet.controller.monitoring.page import DURATION
from fleet.controller.monitoring.timing import BOUNDS_S, Timing
from gateway import __version__
from gateway.common.domain.statistics import MetricSample


def own_piece(samples: Iterable[MetricSample], timing: Timing, holder: str, started: datetime, now: datetime) -> Piece:
    """Return the metrics of this replica. `started`: since when its counters count."""
    points = Points()
    for sample in samples:
        if sample.counter:
            points.total(sample.name, _unit(sample.name), sample.value, now, attributes=sample.labels, start=started)
        else:
            points.gauge(sample.name, _unit(sample.name), sample.value, now, attributes=sample.labels)
    for route, durations in sorted(timing.durations.copy().items()):
        points.histogram(
            DURATION, "s", now, bounds=BOUNDS_S, counts=list(durations.counts), total=durations.total_s,
            attributes={"route": route}, start=started,
        )  # fmt: skip
    named = {"service.name": "edge-fleet", "service.instance.id": holder, "service.version": __version__}
    metrics = {"resource": resource(named), "scopeMetrics": [{"scope": SCOPE, "metrics": points.document()}]}
    return Piece(METRICS, encoded(metrics), points.count)


def _unit(name: str) -> str:
    """Return the UCUM unit that the metric's name implies."""
    bare = name.removesuffix("_total")
    return "By" if bare.endswith("_bytes") else "s" if bare.endswith("_seconds") else "1"
