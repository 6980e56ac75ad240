"""Counters per model version: the fields of Triton's statistics extension, in nanoseconds and counts."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gateway.common.domain.pipeline import Pipeline


@dataclass(slots=True)
class Duration:
    """Number of events of one kind and their total time."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        """Add `count` events that took `ns` in all."""
        self.count += count
        self.ns += ns


LATENCY_BOUNDS_NS = tuple(
    round(step * 1e9)
    for step in (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
)
"""Upper bounds of the latency buckets, ascending; one more bucket counts values above the last."""


@dataclass(slots=True)
class Latency:
    """Histogram of the time from admission to answer: counts per bucket of LATENCY_BOUNDS_NS, and the sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_NS) + 1))
    ns: int = 0

    def add(self, began_ns: Sequence[int], now_ns: int) -> None:
        """Count requests that began then and were answered together now (at least one)."""
        counts, slowest = self.counts, bisect_left(LATENCY_BOUNDS_NS, now_ns - min(began_ns))
        if slowest == bisect_left(LATENCY_BOUNDS_NS, now_ns - max(began_ns)):  # one bucket for all, in most cases
            counts[slowest] += len(began_ns)
        else:
            for began in began_ns:
                counts[bisect_left(LATENCY_BOUNDS_NS, now_ns - began)] += 1
        self.ns += now_ns * len(began_ns) - sum(began_ns)


@dataclass(slots=True)
class TextStatistics:
    """Tokens of a language model: `given` in prompts, and `written`. `first`: times to the first token of a text.

    `writing_ns`: time from the first token to the last, of all texts; of a text in one piece that of its run. A text
    that was not finished counts, too.
    """

    given: int = 0
    written: int = 0
    first: Latency = field(default_factory=Latency)
    writing_ns: int = 0

    def add(self, given: int, written: int, times_ns: tuple[int, int, int, int]) -> None:
        """Count a text. `times_ns`: when its request came, its run began, its first token (0: none) and its end."""
        came, began, first, ended = times_ns
        self.given += given
        self.written += written
        if first:
            self.first.add((came,), first)
        self.writing_ns += ended - (first or began)


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One value of a frontend's metric: `name` and `help` as in METRICS.md; a `counter` or a gauge."""

    name: str
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    counter: bool = True


@dataclass(slots=True)
class BatchStatistics:
    """Runs of one batch size, in rows."""

    size_rows: int
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class RunTimes:
    """Times of one run's stages; `queue_ns` is summed over its requests, `ended_ms` is wall clock since the epoch."""

    queue_ns: int
    input_ns: int
    infer_ns: int
    output_ns: int
    ended_ms: int


@dataclass(slots=True)
class ShadowStatistics:
    """Comparison of a version with the one that answered: rows `compared`, and of them `disagreed`.

    `difference` is the sum over all rows of their mean absolute difference. `not_compared` counts requests, by reason.
    """

    compared: int = 0
    disagreed: int = 0
    difference: float = 0.0
    not_compared: dict[str, int] = field(default_factory=dict)

    def count(self, rows: int, disagreed: int, mean_abs: float) -> None:
        """Count one request that was compared. Rows that hold NaN or infinity have no difference to add."""
        self.compared += rows
        self.disagreed += disagreed
        self.difference += rows * mean_abs if math.isfinite(mean_abs) else 0.0

    def skip(self, reason: str) -> None:
        """Count one request that was not compared."""
        self.not_compared[reason] = self.not_compared.get(reason, 0) + 1


RECENT_RUNS = 127
"""Runs of a step of which the median is known."""


@dataclass(slots=True)
class StepStatistics:
    """Counters of a step of a pipeline: requests that ran it, rows that it ran and skipped, failures, fallbacks.

    `ns`: time of the runs, from the step's begin to its end; with a model, its queue is included. `recent_ns`: that of
    the last runs. `row_cpu_ns`: CPU time of one row in the trial of its model (0: not known).
    """

    runs: int = 0
    rows: int = 0
    skipped_rows: int = 0
    failures: int = 0
    fallbacks: int = 0
    ns: int = 0
    row_cpu_ns: int = 0
    recent_ns: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT_RUNS))

    def took(self, ns: int) -> None:
        """Count the time of a run."""
        self.ns += ns
        self.recent_ns.append(ns)

    @property
    def p50_ns(self) -> int:
        """Return the median time of the last runs, of two in the middle the longer one; 0 without any."""
        return sorted(self.recent_ns)[len(self.recent_ns) // 2] if self.recent_ns else 0


@dataclass(slots=True)
class ServableStatistics:
    """Counters of one version.

    `inferences` counts rows, `executions` runs. `last_inference_ms` is wall clock since the epoch.

    `drops` counts requests that were refused or cancelled before they ran, by reason. `cancelled` has those that their
    callers abandoned; `fail` does not include them. `lanes` counts runs by where they
    ran (inline: on the event loop, worker: on the model's thread). `ignored_parameters` counts unknown parameters.
    `images_turned` counts images that were turned upright by their EXIF orientation.
    `failed_runs`: runs that raised, which is the version's fault. `rejected_runs`: runs that raised for the data of
    their only request. `overruns`: runs that took too much CPU time of the event loop. `overlong_runs`: runs that
    exceeded their time limit. `hung_runs`: those of them that did not end. `failovers`: times that another variant took
    over from one that failed. `weight`: its share now, in percent, of the requests that name no version. `queued`:
    requests that wait now. `busy`: some wait, or are in a run.
    `steps`: those of a pipeline, by name. `wakes`: times that requests waited until the version was open again.
    `cache_hit`: requests that were answered with a kept answer. `cache_miss`: those whose answer was kept.
    `parts`: parts of answers that were sent. `texts`: those of a language model.
    `shadow`: comparisons with another version's answers. Comparisons have no caller, and of the other counters only
    `failed_runs` counts them.
    """

    model: str
    version: str
    last_inference_ms: int = 0
    inferences: int = 0
    executions: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    cancelled: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    latency: Latency = field(default_factory=Latency)
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    lanes: dict[str, int] = field(default_factory=dict)
    queued: int = 0
    busy: bool = False
    ignored_parameters: int = 0
    images_turned: int = 0
    failed_runs: int = 0
    rejected_runs: int = 0
    overruns: int = 0
    overlong_runs: int = 0
    hung_runs: int = 0
    failovers: int = 0
    weight: int = 0
    shadow: ShadowStatistics = field(default_factory=ShadowStatistics)
    steps: dict[str, StepStatistics] = field(default_factory=dict)
    wakes: Latency = field(default_factory=Latency)
    cache_hit: Duration = field(default_factory=Duration)
    cache_miss: Duration = field(default_factory=Duration)
    parts: int = 0
    texts: TextStatistics = field(default_factory=TextStatistics)

    def batch(self, size_rows: int) -> BatchStatistics:
        """Return the statistics of runs of `size_rows` rows."""
        known = self.batches.get(size_rows)
        if known is None:
            known = self.batches[size_rows] = BatchStatistics(size_rows)
        return known

    def answered(self, began_ns: Sequence[int], now_ns: int) -> None:
        """Count requests of one run that were answered together (at least one)."""
        self.success.add(now_ns * len(began_ns) - sum(began_ns), len(began_ns))
        self.latency.add(began_ns, now_ns)

    def executed(self, requests: int, rows: int, times: RunTimes, lane: str) -> None:
        """Count one run. As in Triton, each of its requests took the whole run's time."""
        self.inferences += rows
        self.executions += 1
        self.lanes[lane] = self.lanes.get(lane, 0) + 1
        self.last_inference_ms = times.ended_ms
        self.queue.add(times.queue_ns, requests)
        self.compute_input.add(times.input_ns * requests, requests)
        self.compute_infer.add(times.infer_ns * requests, requests)
        self.compute_output.add(times.output_ns * requests, requests)
        batch = self.batch(rows)
        batch.compute_input.add(times.input_ns)
        batch.compute_infer.add(times.infer_ns)
        batch.compute_output.add(times.output_ns)

    def count_inline(self, runs: Sequence[tuple[int, list[int], int, int, int, int, int]], epoch_ns: int) -> None:
        """Count runs on the event loop as `answered` and `executed` do.

        Each run: rows of a request; when its requests came, it began, was gathered, had run, ended, was answered.
        `epoch_ns`: wall clock at 0 of the monotonic clock, on which the times are.
        """
        requests = rows_run = waited = inputs = infers = outputs = 0
        for rows, came_ns, began, gathered, ran, ended, answered in runs:
            count = len(came_ns)
            rows_run += rows * count
            requests += count
            waited += began * count - sum(came_ns)
            inputs += (gathered - began) * count
            infers += (ran - gathered) * count
            outputs += (ended - ran) * count
            self.success.ns += answered * count - sum(came_ns)
            self.latency.add(came_ns, answered)
            batch = self.batches.get(rows * count) or self.batch(rows * count)
            batch.compute_input.add(gathered - began)
            batch.compute_infer.add(ran - gathered)
            batch.compute_output.add(ended - ran)
        self.success.count += requests
        self.inferences += rows_run
        self.executions += len(runs)
        self.lanes["inline"] = self.lanes.get("inline", 0) + len(runs)
        self.last_inference_ms = max(self.last_inference_ms, (epoch_ns + ended) // 1_000_000)  # others ran meanwhile
        self.queue.add(waited, requests)
        self.compute_input.add(inputs, requests)
        self.compute_infer.add(infers, requests)
        self.compute_output.add(outputs, requests)

    def abandoned(self, after_ns: int) -> None:
        """Count one request that its caller cancelled `after_ns` after it came."""
        self.drop("cancelled")
        self.cancelled.add(after_ns)

    def drop(self, reason: str) -> None:
        """Count one request that is refused or dropped before it runs."""
        self.drops[reason] = self.drops.get(reason, 0) + 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Variant that serves a model version now: runtime, accelerator, reason, and largest batch in rows (0: none).

    `signed`: its owner signed it, and this gateway verified that; otherwise it was added by hand. `level` is the result
    of its trial (one of LEVELS), with `remarks`. `joining` says why requests are not joined, or is "" if they are when
    that saves time. `loop` says why and until when a model has left the event loop, or is "" if it did not.
    `provider` is the plugin of the runtime that runs it, or "". `runs` take place at a time. `pipeline` is what a
    pipeline declares, else None. `cpu_us`: CPU time of a run of one row in the trial (0: not measured).
    `isolated`: it runs in a worker process. `degraded` says which better variants failed in service, and when each is
    tried again, or is "" if none did. `residency`: what the open version takes of
    the budget of memory, or that it is cold; "" without a budget.
    """

    variant: str
    runtime: str
    precision: str
    accelerator: str
    reason: str
    max_batch_rows: int
    signed: bool = False
    level: str = ""
    joining: str = ""
    remarks: tuple[str, ...] = ()
    loop: str = ""
    provider: str = ""
    runs: int = 1
    pipeline: Pipeline | None = None
    cpu_us: float = 0.0
    isolated: bool = False
    degraded: str = ""
    residency: str = ""

    @property
    def place(self) -> tuple[str, str, str]:
        """Return variant, accelerator and plugin provider, as `Candidate.place` does."""
        return self.variant, self.accelerator, self.provider
