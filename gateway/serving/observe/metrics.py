"""Metrics page: it reads existing counters at each scrape. METRICS.md documents each metric."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from gateway import __version__
from gateway.common.domain.errors import RequestError
from gateway.common.domain.statistics import LATENCY_BOUNDS_NS, MetricSample, ServableStatistics
from gateway.serving.domain.ports import Inference, Statistics
from gateway.serving.domain.vitals import Vitals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from psutil import Process

PREFIX = "edge_gateway_"
MODEL_LABELS = ("model", "version")
NS = 1e9
STAGES = ("compute_input", "compute_infer", "compute_output")

Source = Callable[[], Iterable[MetricSample]]


class Metrics:
    """Registry with one collector; `render` answers a scrape."""

    def __init__(
        self,
        inference: Inference,
        statistics: Statistics,
        *,
        sources: Sequence[Source] = (),
        vitals: Callable[[], Vitals] = Vitals,
    ) -> None:
        self._inference, self._statistics = inference, statistics
        self._sources, self._read_vitals, self._vitals = sources, vitals, Vitals()

    async def render(self) -> tuple[bytes, str]:
        """Return the page in Prometheus' text format, and its content type.

        Sensors are read on a thread: one on I²C takes milliseconds, which must not delay requests. The first
        scrape loads the libraries there, too.
        """
        registry, self._vitals = await asyncio.to_thread(lambda: (self._registry, self._read_vitals()))
        from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4

    @cached_property
    def _registry(self) -> CollectorRegistry:
        from prometheus_client import CollectorRegistry

        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return registry

    @cached_property
    def _process(self) -> Process:
        from psutil import Process

        return Process(os.getpid())

    def collect(self) -> Iterable[Metric]:
        """Yield all metric families; prometheus_client calls this."""
        counted = self._statistics.statistics()
        yield from _traffic(counted)
        yield from _time(counted)
        yield from _steps(counted)
        yield from self._models(counted)
        yield from _updates(counted)
        yield from _device(self._vitals)
        yield from self._itself()
        yield from _samples(sample for source in self._sources for sample in source())

    def describe(self) -> Iterable[Metric]:
        """Return nothing: no metric is described before the first scrape."""
        return ()

    def _models(self, counted: Sequence[ServableStatistics]) -> Iterable[Metric]:
        ready = _gauge("model_ready", "Whether the model version answers: 1 or 0.", MODEL_LABELS)
        labels = (*MODEL_LABELS, "variant", "runtime", "precision", "accelerator")
        variant = _gauge("variant_info", "The variant in use; always 1.", labels)
        level = _gauge(
            "model_level_info",
            "What a trial found out of the variant: proven, exercised or unverified; always 1.",
            (*MODEL_LABELS, "level"),
        )
        signed = _gauge("model_signed", "Whether the version's owner signed it: 1, or 0 given by hand.", MODEL_LABELS)
        for servable in counted:
            of = [servable.model, servable.version]
            ready.add_metric(of, float(self._inference.ready(*of)))
            try:
                placement = self._inference.placement(*of)
            except RequestError:  # it is not served; its counters are still shown
                continue
            where = [placement.variant, placement.runtime, placement.precision, placement.accelerator]
            variant.add_metric([*of, *where], 1)
            signed.add_metric(of, float(placement.signed))
            level.add_metric([*of, placement.level], 1)
        return ready, variant, signed, level

    def _itself(self) -> Iterable[Metric]:
        with self._process.oneshot():
            used, cpu = self._process.memory_info(), self._process.cpu_times()
        memory = _gauge("process_resident_memory_bytes", "Resident memory of the daemon.")
        memory.add_metric([], used.rss)
        seconds = _counter("process_cpu_seconds", "Processor time of the daemon, by mode.", ("mode",))
        seconds.add_metric(["user"], cpu.user)
        seconds.add_metric(["system"], cpu.system)
        build = _gauge("build_info", "The gateway's version; always 1.", ("gateway_version",))
        build.add_metric([__version__], 1)
        return memory, seconds, build


def _traffic(counted: Sequence[ServableStatistics]) -> Iterable[Metric]:
    requests = _counter("requests", "Requests answered, by outcome: success or fail.", (*MODEL_LABELS, "outcome"))
    rows = _counter("rows", "Batch rows inferred.", MODEL_LABELS)
    executions = _counter("executions", "Runs of a session; rows per run is the batch size reached.", MODEL_LABELS)
    lanes = _counter("lane_executions", "Runs by where: inline or on the worker.", (*MODEL_LABELS, "lane"))
    drops = _counter("drops", "Requests refused or dropped before they ran, by reason.", (*MODEL_LABELS, "reason"))
    ignored = _counter("ignored_parameters", "Request parameters that this server does not know.", MODEL_LABELS)
    turned = _counter("images_turned", "Images turned upright by their EXIF orientation.", MODEL_LABELS)
    queued = _gauge("queued", "Requests waiting for a run now.", MODEL_LABELS)
    for servable in counted:
        of = [servable.model, servable.version]
        requests.add_metric([*of, "success"], servable.success.count)
        requests.add_metric([*of, "fail"], servable.fail.count)
        rows.add_metric(of, servable.inferences)
        executions.add_metric(of, servable.executions)
        for lane, count in sorted(servable.lanes.items()):
            lanes.add_metric([*of, lane], count)
        for reason, count in sorted(servable.drops.items()):
            drops.add_metric([*of, reason], count)
        ignored.add_metric(of, servable.ignored_parameters)
        turned.add_metric(of, servable.images_turned)
        queued.add_metric(of, servable.queued)
    return requests, rows, executions, lanes, drops, ignored, turned, queued


def _updates(counted: Sequence[ServableStatistics]) -> Iterable[Metric]:
    """Return the metrics that decide whether a new version takes over."""
    failed = _counter("failed_runs", "Runs that raised: the version's fault, not its callers'.", MODEL_LABELS)
    rejected = _counter("rejected_runs", "Runs that raised for the data of their only request.", MODEL_LABELS)
    overruns = _counter("loop_overruns", "Runs that took too much CPU time of the event loop.", MODEL_LABELS)
    overlong = _counter("overlong_runs", "Runs that took longer than [limits] run_limit_s allows.", MODEL_LABELS)
    hung = _counter(
        "hung_runs", "Overlong runs that did not end: their version was taken out of service.", MODEL_LABELS
    )
    weight = _gauge("weight_percent", "Share of the requests that name no version.", MODEL_LABELS)
    rows = _counter("shadow_rows", "Rows asked for comparison: agreed or disagreed.", (*MODEL_LABELS, "outcome"))
    difference = _counter("shadow_difference", "Mean absolute difference of those rows, summed.", MODEL_LABELS)
    skipped = _counter("shadow_skips", "Requests that were not compared, by reason.", (*MODEL_LABELS, "reason"))
    for servable in counted:
        of, shadow = [servable.model, servable.version], servable.shadow
        failed.add_metric(of, servable.failed_runs)
        rejected.add_metric(of, servable.rejected_runs)
        overruns.add_metric(of, servable.overruns)
        overlong.add_metric(of, servable.overlong_runs)
        hung.add_metric(of, servable.hung_runs)
        weight.add_metric(of, servable.weight)
        rows.add_metric([*of, "agreed"], shadow.compared - shadow.disagreed)
        rows.add_metric([*of, "disagreed"], shadow.disagreed)
        difference.add_metric(of, shadow.difference)
        for reason, count in sorted(shadow.not_compared.items()):
            skipped.add_metric([*of, reason], count)
    return failed, rejected, overruns, overlong, hung, weight, rows, difference, skipped


def _time(counted: Sequence[ServableStatistics]) -> Iterable[Metric]:
    from prometheus_client.metrics_core import HistogramMetricFamily

    queue = _counter("queue_seconds", "Time that requests waited for their run.", MODEL_LABELS)
    compute = _counter("compute_seconds", "Time of runs, by stage.", (*MODEL_LABELS, "stage"))
    help_text = "Time from admission to answer of answered requests."
    bounds = [*(str(bound / NS) for bound in LATENCY_BOUNDS_NS), "+Inf"]
    latency = HistogramMetricFamily(f"{PREFIX}request_latency_seconds", help_text, labels=MODEL_LABELS)
    for servable in counted:
        of = [servable.model, servable.version]
        queue.add_metric(of, servable.queue.ns / NS)
        for stage in STAGES:
            compute.add_metric([*of, stage.removeprefix("compute_")], getattr(servable, stage).ns / NS)
        buckets = list(zip(bounds, accumulate(servable.latency.counts), strict=True))
        latency.add_metric(of, buckets, servable.latency.ns / NS)
    return queue, compute, latency


def _steps(counted: Sequence[ServableStatistics]) -> Iterable[Metric]:
    """Return the metrics of the steps of pipelines. Their names are those that pipelines declare."""
    labels = (*MODEL_LABELS, "step")
    runs = _counter("step_runs", "Requests that ran a step of a pipeline.", labels)
    rows = _counter("step_rows", "Rows of a step with a model: run or skipped.", (*labels, "outcome"))
    failures = _counter("step_failures", "Requests that failed because of a step.", labels)
    fallbacks = _counter("step_fallbacks", "Runs in place of which a step's fallback was used.", labels)
    seconds = _counter("step_seconds", "Time of a step's runs, with the queue of its model.", labels)
    for servable in counted:
        for name, step in servable.steps.items():
            of = [servable.model, servable.version, name]
            runs.add_metric(of, step.runs)
            rows.add_metric([*of, "run"], step.rows)
            rows.add_metric([*of, "skipped"], step.skipped_rows)
            failures.add_metric(of, step.failures)
            fallbacks.add_metric(of, step.fallbacks)
            seconds.add_metric(of, step.ns / NS)
    return runs, rows, failures, fallbacks, seconds


def _device(vitals: Vitals) -> Iterable[Metric]:
    heat = _gauge("temperature_celsius", "Temperature, by zone.", ("zone",))
    for zone, celsius in sorted(vitals.temperatures_c.items()):
        heat.add_metric([zone], celsius)
    power = _gauge("power_watts", "Power drawn, by rail.", ("rail",))
    for rail, watts in sorted(vitals.power_watts.items()):
        power.add_metric([rail], watts)
    memory = _gauge("memory_available_bytes", "Memory that the device has left.")
    if vitals.memory_available_bytes is not None:
        memory.add_metric([], vitals.memory_available_bytes)
    throttled = _gauge("throttled", "Whether the firmware slows the processor now: 1 or 0.")
    if vitals.throttled is not None:
        throttled.add_metric([], float(vitals.throttled))
    return heat, power, memory, throttled


def _samples(samples: Iterable[MetricSample]) -> Iterable[Metric]:
    families: dict[str, Any] = {}
    for sample in samples:
        if sample.name not in families:
            make = _counter if sample.counter else _gauge
            families[sample.name] = make(sample.name.removesuffix("_total"), sample.help, tuple(sample.labels))
        families[sample.name].add_metric(list(sample.labels.values()), sample.value)
    return families.values()


def _counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Any:
    """Return a counter family; the format appends `_total` to its name."""
    from prometheus_client.metrics_core import CounterMetricFamily

    return CounterMetricFamily(PREFIX + name.removeprefix(PREFIX), help_text, labels=labels)


def _gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Any:
    from prometheus_client.metrics_core import GaugeMetricFamily

    return GaugeMetricFamily(PREFIX + name.removeprefix(PREFIX), help_text, labels=labels)
