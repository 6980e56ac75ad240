"""Metrics page in Prometheus' text format: it reads existing counters at each scrape. METRICS.md documents each metric.

prometheus_client takes six times as long: it builds a line from its labels at each scrape.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from pathlib import Path

from gateway import __version__
from gateway.common.domain.errors import RequestError
from gateway.common.domain.statistics import LATENCY_BOUNDS_NS, MetricSample, ServableStatistics
from gateway.serving.domain.ports import Inference, Statistics
from gateway.serving.domain.vitals import Vitals

PREFIX = "edge_gateway_"
MODEL_LABELS = ("model", "version")
NS = 1e9
STAGES = ("compute_input", "compute_infer", "compute_output")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MODELS_AT_ONCE = 16
"""Model versions whose samples are written before the event loop serves other work: 1 ms."""
LABELS_KEPT = 32_768
"""Texts of labels that are kept: about 12 for each model version."""
HISTOGRAMS_KEPT = 2048
"""Histograms whose texts are kept, 4 KiB each."""

Source = Callable[[], Iterable[MetricSample]]


class _Family:
    """Metric family with its samples, each a line of text."""

    __slots__ = ("_labels", "head", "lines", "name")

    def __init__(self, name: str, help_text: str, labels: Sequence[str], kind: str) -> None:
        self.name, self._labels = PREFIX + name.removeprefix(PREFIX), tuple(labels)
        told = help_text.replace("\\", r"\\").replace("\n", r"\n")
        self.head = f"# HELP {self.name} {told}\n# TYPE {self.name} {kind}\n"
        self.lines: list[str] = []

    def add(self, values: tuple[str, ...], value: float) -> None:
        """Add a sample with these values of the labels."""
        labels = f"{{{_labels_text(self._labels, values)}}}" if values else ""
        self.lines.append(f"{self.name}{labels} {_number(value)}\n")

    def add_histogram(self, values: tuple[str, ...], counts: list[int], total: float) -> None:
        """Add the samples of a histogram of latencies. `counts`: those up to each of the bounds."""
        heads, numbers = _histogram_heads(self.name, self._labels, values), (*counts, counts[-1], total)
        self.lines += [f"{head}{_number(number)}\n" for head, number in zip(heads, numbers, strict=True)]


@lru_cache(maxsize=HISTOGRAMS_KEPT)
def _histogram_heads(name: str, names: tuple[str, ...], values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the text before each number of a histogram."""
    bounds, labels = [*(str(bound / NS) for bound in LATENCY_BOUNDS_NS), "+Inf"], _labels_text(names, values)
    buckets = (f'{name}_bucket{{le="{bound}",{labels}}} ' for bound in bounds)
    return (*buckets, f"{name}_count{{{labels}}} ", f"{name}_sum{{{labels}}} ")


@lru_cache(maxsize=LABELS_KEPT)
def _labels_text(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    """Return labels in the order of their names, as between the braces of a sample."""
    escaped = (value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"") for value in values)
    return ",".join(f'{name}="{value}"' for name, value in sorted(zip(names, escaped, strict=True)))


def _number(value: float) -> str:
    """Return a number as Go writes it, which begins with exponents at a million."""
    if type(value) is int and 0 <= value < 1_000_000:
        return f"{value}.0"
    text = repr(float(value))
    dot = text.find(".")
    if dot > 6 and value > 0:
        return f"{f'{text[0]}.{text[1:dot]}{text[dot + 1 :]}'.rstrip('0.')}e+{dot - 1:02d}"
    return {"inf": "+Inf", "-inf": "-Inf", "nan": "NaN"}.get(text, text)


class Metrics:
    """Metrics of this process; `render` answers a scrape."""

    def __init__(
        self,
        inference: Inference,
        statistics: Statistics,
        *,
        sources: Sequence[Source] = (),
        vitals: Callable[[], Vitals] = Vitals,
    ) -> None:
        self._inference, self._statistics = inference, statistics
        self._sources, self._read_vitals = sources, vitals

    async def render(self) -> tuple[bytes, str]:
        """Return the page in Prometheus' text format, and its content type.

        Sensors are read on a thread: one on I²C takes milliseconds, which must not delay requests.
        """
        vitals = await asyncio.to_thread(self._read_vitals)
        page: dict[str, list[bytes]] = {}
        counted = self._statistics.statistics()
        for begin in range(0, len(counted) or 1, MODELS_AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            part = counted[begin : begin + MODELS_AT_ONCE]
            times = chain(_time(part), _texts(part), _steps(part))
            _add(page, chain(_traffic(part), times, self._models(part), _updates(part)))
        samples = (sample for source in self._sources for sample in source())
        _add(page, chain(_device(vitals), _process(), _samples(samples)))
        return b"".join(chain.from_iterable(page.values())), CONTENT_TYPE

    def _models(self, counted: Sequence[ServableStatistics]) -> Iterable[_Family]:
        ready = _gauge("model_ready", "Whether the model version answers: 1 or 0.", MODEL_LABELS)
        labels = (*MODEL_LABELS, "variant", "runtime", "precision", "accelerator")
        variant = _gauge("variant_info", "The variant in use; always 1.", labels)
        level = _gauge(
            "model_level_info",
            "What a trial found out of the variant: proven, exercised or unverified; always 1.",
            (*MODEL_LABELS, "level"),
        )
        degraded = _gauge("model_degraded", "Whether a better variant has failed in service: 1 or 0.", MODEL_LABELS)
        signed = _gauge("model_signed", "Whether the version's owner signed it: 1, or 0 given by hand.", MODEL_LABELS)
        for servable in counted:
            of = (servable.model, servable.version)
            ready.add(of, float(self._inference.ready(*of)))
            try:
                placement = self._inference.placement(*of)
            except RequestError:  # it is not served; its counters are still shown
                continue
            where = (placement.variant, placement.runtime, placement.precision, placement.accelerator)
            variant.add((*of, *where), 1)
            degraded.add(of, float(bool(placement.degraded)))
            signed.add(of, float(placement.signed))
            level.add((*of, placement.level), 1)
        return ready, variant, degraded, signed, level


def _traffic(counted: Sequence[ServableStatistics]) -> Iterable[_Family]:
    requests = _counter("requests", "Requests answered, by outcome: success or fail.", (*MODEL_LABELS, "outcome"))
    rows = _counter("rows", "Batch rows inferred.", MODEL_LABELS)
    executions = _counter("executions", "Runs of a session; rows per run is the batch size reached.", MODEL_LABELS)
    lanes = _counter("lane_executions", "Runs by where: inline or on the worker.", (*MODEL_LABELS, "lane"))
    drops = _counter("drops", "Requests refused or dropped before they ran, by reason.", (*MODEL_LABELS, "reason"))
    ignored = _counter("ignored_parameters", "Request parameters that this server does not know.", MODEL_LABELS)
    turned = _counter("images_turned", "Images turned upright by their EXIF orientation.", MODEL_LABELS)
    parts = _counter("response_parts", "Parts of answers that were sent before the last one.", MODEL_LABELS)
    queued = _gauge("queued", "Requests waiting for a run now.", MODEL_LABELS)
    for servable in counted:
        of = (servable.model, servable.version)
        requests.add((*of, "success"), servable.success.count)
        requests.add((*of, "fail"), servable.fail.count)
        rows.add(of, servable.inferences)
        executions.add(of, servable.executions)
        for lane, count in sorted(servable.lanes.items()):
            lanes.add((*of, lane), count)
        for reason, count in sorted(servable.drops.items()):
            drops.add((*of, reason), count)
        ignored.add(of, servable.ignored_parameters)
        turned.add(of, servable.images_turned)
        if servable.parts:
            parts.add(of, servable.parts)
        queued.add(of, servable.queued)
    return requests, rows, executions, lanes, drops, ignored, turned, parts, queued


def _updates(counted: Sequence[ServableStatistics]) -> Iterable[_Family]:
    """Return the metrics that decide whether a new version takes over."""
    failed = _counter("failed_runs", "Runs that raised: the version's fault, not its callers'.", MODEL_LABELS)
    rejected = _counter("rejected_runs", "Runs that raised for the data of their only request.", MODEL_LABELS)
    overruns = _counter("loop_overruns", "Runs that took too much CPU time of the event loop.", MODEL_LABELS)
    overlong = _counter("overlong_runs", "Runs that took longer than [limits] run_limit_s allows.", MODEL_LABELS)
    hung = _counter(
        "hung_runs", "Overlong runs that did not end: their version was taken out of service.", MODEL_LABELS
    )
    failovers = _counter("failovers", "Times that another variant took over from one that failed.", MODEL_LABELS)
    weight = _gauge("weight_percent", "Share of the requests that name no version.", MODEL_LABELS)
    rows = _counter("shadow_rows", "Rows asked for comparison: agreed or disagreed.", (*MODEL_LABELS, "outcome"))
    difference = _counter("shadow_difference", "Mean absolute difference of those rows, summed.", MODEL_LABELS)
    skipped = _counter("shadow_skips", "Requests that were not compared, by reason.", (*MODEL_LABELS, "reason"))
    for servable in counted:
        of, shadow = (servable.model, servable.version), servable.shadow
        failed.add(of, servable.failed_runs)
        rejected.add(of, servable.rejected_runs)
        overruns.add(of, servable.overruns)
        overlong.add(of, servable.overlong_runs)
        hung.add(of, servable.hung_runs)
        failovers.add(of, servable.failovers)
        weight.add(of, servable.weight)
        rows.add((*of, "agreed"), shadow.compared - shadow.disagreed)
        rows.add((*of, "disagreed"), shadow.disagreed)
        difference.add(of, shadow.difference)
        for reason, count in sorted(shadow.not_compared.items()):
            skipped.add((*of, reason), count)
    return failed, rejected, overruns, overlong, hung, failovers, weight, rows, difference, skipped


def _time(counted: Sequence[ServableStatistics]) -> Iterable[_Family]:
    queue = _counter("queue_seconds", "Time that requests waited for their run.", MODEL_LABELS)
    compute = _counter("compute_seconds", "Time of runs, by stage.", (*MODEL_LABELS, "stage"))
    help_text = "Time from admission to answer of answered requests."
    latency = _Family("request_latency_seconds", help_text, MODEL_LABELS, "histogram")
    help_text = "Time that requests waited until a closed version was open again."
    wakes = _Family("wake_wait_seconds", help_text, MODEL_LABELS, "histogram")
    caches = {
        "hit": (
            _counter("cache_num_hits", "Requests that were answered with a kept answer.", MODEL_LABELS),
            _counter("cache_hit_seconds", "Time of these requests.", MODEL_LABELS),
        ),
        "miss": (
            _counter("cache_num_misses", "Requests whose answer was kept, because none was there.", MODEL_LABELS),
            _counter("cache_miss_seconds", "Time of these requests.", MODEL_LABELS),
        ),
    }
    for servable in counted:
        of = (servable.model, servable.version)
        queue.add(of, servable.queue.ns / NS)
        for stage in STAGES:
            compute.add((*of, stage.removeprefix("compute_")), getattr(servable, stage).ns / NS)
        latency.add_histogram(of, list(accumulate(servable.latency.counts)), servable.latency.ns / NS)
        if any(servable.wakes.counts):
            wakes.add_histogram(of, list(accumulate(servable.wakes.counts)), servable.wakes.ns / NS)
        for kind, families in caches.items():
            if (found := getattr(servable, f"cache_{kind}")).count:
                families[0].add(of, found.count)
                families[1].add(of, found.ns / NS)
    return queue, compute, latency, wakes, *chain.from_iterable(caches.values())


def _texts(counted: Sequence[ServableStatistics]) -> Iterable[_Family]:
    prompts = _counter("prompt_tokens", "Tokens of prompts that a language model read.", MODEL_LABELS)
    written = _counter("generation_tokens", "Tokens that a language model wrote.", MODEL_LABELS)
    writing = _counter("generation_seconds", "Time from the first token of a text to its last.", MODEL_LABELS)
    help_text = "Time from admission of a request to the first token of its text."
    first = _Family("time_to_first_token_seconds", help_text, MODEL_LABELS, "histogram")
    for servable in counted:
        of, texts = (servable.model, servable.version), servable.texts
        if texts.given or texts.written:
            prompts.add(of, texts.given)
            written.add(of, texts.written)
            writing.add(of, texts.writing_ns / NS)
            first.add_histogram(of, list(accumulate(texts.first.counts)), texts.first.ns / NS)
    return prompts, written, writing, first


def _steps(counted: Sequence[ServableStatistics]) -> Iterable[_Family]:
    """Return the metrics of the steps of pipelines. Their names are those that pipelines declare."""
    labels = (*MODEL_LABELS, "step")
    runs = _counter("step_runs", "Requests that ran a step of a pipeline.", labels)
    rows = _counter("step_rows", "Rows of a step with a model: run or skipped.", (*labels, "outcome"))
    failures = _counter("step_failures", "Requests that failed because of a step.", labels)
    fallbacks = _counter("step_fallbacks", "Runs in place of which a step's fallback was used.", labels)
    seconds = _counter("step_seconds", "Time of a step's runs, with the queue of its model.", labels)
    for servable in counted:
        for name, step in servable.steps.items():
            of = (servable.model, servable.version, name)
            runs.add(of, step.runs)
            rows.add((*of, "run"), step.rows)
            rows.add((*of, "skipped"), step.skipped_rows)
            failures.add(of, step.failures)
            fallbacks.add(of, step.fallbacks)
            seconds.add(of, step.ns / NS)
    return runs, rows, failures, fallbacks, seconds


def _device(vitals: Vitals) -> Iterable[_Family]:
    heat = _gauge("temperature_celsius", "Temperature, by zone.", ("zone",))
    for zone, celsius in sorted(vitals.temperatures_c.items()):
        heat.add((zone,), celsius)
    power = _gauge("power_watts", "Power drawn, by rail.", ("rail",))
    for rail, watts in sorted(vitals.power_watts.items()):
        power.add((rail,), watts)
    memory = _gauge("memory_available_bytes", "Memory that the device has left.")
    if vitals.memory_available_bytes is not None:
        memory.add((), vitals.memory_available_bytes)
    throttled = _gauge("throttled", "Whether the firmware slows the processor now: 1 or 0.")
    if vitals.throttled is not None:
        throttled.add((), float(vitals.throttled))
    return heat, power, memory, throttled


def _process() -> Iterable[_Family]:
    memory = _gauge("process_resident_memory_bytes", "Resident memory of the daemon.")
    memory.add((), int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGE_BYTES)  # proc_pid_statm(5)
    used = os.times()
    seconds = _counter("process_cpu_seconds", "Processor time of the daemon, by mode.", ("mode",))
    seconds.add(("user",), used.user)
    seconds.add(("system",), used.system)
    build = _gauge("build_info", "The gateway's version; always 1.", ("gateway_version",))
    build.add((__version__,), 1)
    return memory, seconds, build


def _samples(samples: Iterable[MetricSample]) -> Iterable[_Family]:
    families: dict[str, _Family] = {}
    for sample in samples:
        if sample.name not in families:
            make = _counter if sample.counter else _gauge
            families[sample.name] = make(sample.name.removesuffix("_total"), sample.help, tuple(sample.labels))
        families[sample.name].add(tuple(sample.labels.values()), sample.value)
    return families.values()


def _counter(name: str, help_text: str, labels: Sequence[str] = ()) -> _Family:
    """Return a counter family; the format appends `_total` to its name."""
    return _Family(f"{name}_total", help_text, labels, "counter")


def _gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> _Family:
    return _Family(name, help_text, labels, "gauge")


def _add(page: dict[str, list[bytes]], families: Iterable[_Family]) -> None:
    """Add the lines of families to a page, behind those of the same families."""
    for family in families:
        lines = page.get(family.name)
        if lines is None:
            lines = page[family.name] = [family.head.encode()]
        lines.append("".join(family.lines).encode())
