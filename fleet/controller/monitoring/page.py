"""The controller's metrics page in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fleet.controller.monitoring.measures import PREFIX, Measures
from fleet.controller.monitoring.timing import BOUNDS_S, Timing
from gateway.common.domain.statistics import MetricSample

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

DURATION = f"{PREFIX}request_duration_seconds"


class MetricsPage:
    """Metrics page, one per process. Thread-safe."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def render(self) -> tuple[bytes, str]:
        """Return the page and its content type."""
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._measures))
        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _Collector:
    """Collector in the form that prometheus_client requires."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures

    def collect(self) -> Iterable[Metric]:
        yield from _families(self._measures.samples())
        yield _histogram(self._measures.timing)

    def describe(self) -> Iterable[Metric]:
        """Describe nothing before the first scrape."""
        return ()


def _families(samples: Iterable[MetricSample]) -> Iterable[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

    families: dict[str, Any] = {}
    for sample in samples:
        if sample.name not in families:
            make = CounterMetricFamily if sample.counter else GaugeMetricFamily
            families[sample.name] = make(sample.name.removesuffix("_total"), sample.help, labels=tuple(sample.labels))
        families[sample.name].add_metric(list(sample.labels.values()), sample.value)
    return families.values()


def _histogram(timing: Timing) -> Metric:
    from prometheus_client.metrics_core import HistogramMetricFamily

    family = HistogramMetricFamily(DURATION, "Time from a request's head to the end of its answer.", labels=("route",))
    for route, durations in sorted(timing.durations.copy().items()):
        bounds = [*map(str, BOUNDS_S), "+Inf"]  # each with the count of requests that took no longer
        buckets = [*zip(bounds, accumulate(list(durations.counts)), strict=True)]
        family.add_metric([route], buckets, durations.total_s)
    return family
