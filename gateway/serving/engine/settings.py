"""Limits of the engine, each with its unit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.inventory import ACCELERATOR_KINDS, CPU
from gateway.common.domain.manifest import LEVELS
from gateway.common.domain.selection import OBJECTIVES
from gateway.serving.domain.lifecycle import READY

THREADS_LIMIT = 1024
"""Most threads: more than any supported device has cores, so that a larger number is a typing error."""


POLICIES = ("reject", "oldest", "latest")
"""Policies of a full queue: refuse the newcomer, drop the oldest, or keep only the newest of each stream."""
EVERY_CALLER = "*"
"""Name that stands for each caller without a quota of its own."""
DELAY_LIMIT_US = 1_000_000
"""Longest delay for joining requests: a second; more is an error."""
MIB = 1024 * 1024
WARM_AT = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
"""Time of a day, as in `warm_at`."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of one model's queue: `[[limits.queue]]`."""

    model: str  # the model whose queue this is
    policy: str = "reject"  # when full: reject the newcomer, drop the oldest, or keep the latest of each stream
    requests: int = 0  # requests waiting per model version; 0: as [limits] queue_requests
    delay_us: int = 0  # longest time that a request waits to be joined with others, if joining pays
    priority: int = 1  # of requests that name none; 1 is served first
    join: bool = True  # allow requests to share a run if the trial proved that their answers stay the same

    def __post_init__(self) -> None:
        """Refuse invalid values. Raises ConfigurationError (table limits.queue)."""
        if not self.model:
            raise ConfigurationError("must name a model", table="limits.queue", key="model")
        if self.policy not in POLICIES:
            raise ConfigurationError(
                f"must be one of {', '.join(POLICIES)}, not {self.policy!r:.40}", table="limits.queue", key="policy"
            )
        if self.delay_us > DELAY_LIMIT_US:
            raise ConfigurationError(f"must be at most {DELAY_LIMIT_US}", table="limits.queue", key="delay_us")
        if self.priority < 1:
            raise ConfigurationError("must be at least 1", table="limits.queue", key="priority")


@dataclass(frozen=True, slots=True)
class QuotaSettings:
    """Quota of one caller: `[[limits.quota]]`."""

    caller: str  # token's name, certificate's name, uid:<uid> or address; "*": each caller without a quota of its own
    requests_per_s: float = 0.0  # requests a second, on average; 0: not bounded
    burst: int = 0  # requests at once after a pause; 0: as many as requests_per_s, at least 1
    in_flight: int = 0  # requests under way at a time; 0: not bounded
    tokens_per_minute: float = 0.0  # tokens of prompts and texts of language models, on average; 0: not bounded

    def __post_init__(self) -> None:
        """Refuse a quota without a limit. Raises ConfigurationError (table limits.quota)."""
        if not self.caller:
            raise ConfigurationError('must name a caller, or "*"', table="limits.quota", key="caller")
        if not (self.requests_per_s or self.in_flight or self.tokens_per_minute):
            problem = "bounds nothing; set requests_per_s, in_flight or tokens_per_minute"
            raise ConfigurationError(problem, table="limits.quota", key="caller")
        if self.burst and not self.requests_per_s:
            raise ConfigurationError("needs requests_per_s as well", table="limits.quota", key="burst")

    @property
    def allowance(self) -> float:
        """Return the number of requests that a full bucket holds."""
        return float(self.burst or max(1.0, self.requests_per_s))


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of one request and one queue: `[limits]`."""

    max_batch_rows: int = 1024  # rows one request may carry; announced as max_batch_size
    queue_requests: int = 1024  # requests waiting per model version, as many as calls; one more is OVERLOADED
    run_limit_s: float = 30.0  # a longer run on a worker is ended if its runtime can do that; its callers are refused
    ready: str = "all"  # when a start is ready: "all" models were tried once, or the "first" one serves
    drain_s: float = 10.0  # longest time that a replaced or unloaded version has to finish its queue
    image_pixels: int = 40_000_000  # most pixels of one request's images; more are refused before decoding
    queue: tuple[QueueSettings, ...] = ()  # models with queue settings of their own
    quota: tuple[QuotaSettings, ...] = ()  # callers with a quota
    batch_rows: ClassVar[int] = 32  # most rows of queued requests that one run joins, if batching was measured to pay
    batch_gain: ClassVar[float] = 1.2  # least ratio of one row's time to a batched row's; below it none are joined
    inline_limit_us: ClassVar[int] = 300  # a run measured shorter happens on the event loop; 0: none does
    inline_overruns: ClassVar[int] = 10  # times inline_limit_us that a run may take; after three, its model leaves
    loop_retry_s: ClassVar[float] = 60.0  # wait before a model that left, or joining, is tried again; it doubles
    run_overruns: ClassVar[int] = 10  # ... or this many times what the trial measured for its rows, if that is longer
    run_end_s: ClassVar[float] = 10.0  # an overlong run that does not end then takes its version out of service
    max_hangs: ClassVar[int] = 3  # times that a version is opened again after such a run; then only by a load
    turn_us: ClassVar[int] = 1000  # time that runs may take on the event loop before it polls its sockets again
    forms: ClassVar[int] = 256  # shapes of requests remembered per model version, so that they are checked once
    worker_wait_ms: ClassVar[int] = 5  # wait of workers' requests for the event loop's core; then they get half of it
    thread_wait_s: ClassVar[float] = 1.0  # longest wait of a run for the profile's threads; then it runs without them
    quota_callers: ClassVar[int] = 1024  # callers whose quotas are kept; above it, the longest idle is forgotten
    retry_after_s: ClassVar[float] = 1.0  # wait that an OVERLOADED or UNAVAILABLE caller is asked for
    notify_within_s: ClassVar[float] = 10.0  # time until a start sends READY=1 to systemd, whatever models still load
    staged_versions: ClassVar[int] = 8  # versions loaded for updates that are not committed yet
    lease_limit_s: ClassVar[float] = 3600.0  # longest time that a route lasts without being renewed
    comparisons: ClassVar[int] = 4  # comparisons of two versions' answers that wait; each keeps the outputs of both
    image_bytes: ClassVar[int] = 32 * 1_048_576  # an encoded image larger than this is refused
    image_threads: ClassVar[int] = 1  # images decoded at once
    request_slack_bytes: ClassVar[int] = 65_536  # of a request for names, parameters and id, next to its shapes
    decode_inline_us: ClassVar[int] = 500  # decoding or encoding that takes longer happens on a thread
    decode_threads: ClassVar[int] = 1  # threads that decode large requests and encode large answers; callers take turns

    def __post_init__(self) -> None:
        """Refuse limits that no request passes. Raises ConfigurationError (table limits)."""
        for key in ("max_batch_rows", "queue_requests", "image_pixels"):
            if getattr(self, key) < 1:
                raise ConfigurationError("must be at least 1", table="limits", key=key)
        if self.run_limit_s <= 0:
            raise ConfigurationError("must be more than 0", table="limits", key="run_limit_s")
        if self.ready not in READY:
            problem = f"must be one of {', '.join(READY)}, not {self.ready!r:.40}"
            raise ConfigurationError(problem, table="limits", key="ready")
        _refuse_twice("queue", [queue.model for queue in self.queue])
        _refuse_twice("quota", [quota.caller for quota in self.quota])

    def queue_of(self, model: str) -> QueueSettings:
        """Return the queue settings of `model`, with `requests` set."""
        whole = QueueSettings(model, requests=self.queue_requests)
        own = next((queue for queue in self.queue if queue.model == model), whole)
        return own if own.requests else replace(own, requests=self.queue_requests)


def _refuse_twice(key: str, names: Sequence[str], table: str = "limits") -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"names {twice!r:.100} twice; write one entry", table=table, key=key)


@dataclass(frozen=True, slots=True)
class FailoverSettings:
    """When another variant or accelerator takes over from one that fails: `[failover]`."""

    failures: int = 3  # failed runs within window_s after which the next serves; a hang, or a device that is gone: 1
    window_s: float = 60.0  # time within which failed runs add up
    retry_s: float = 30.0  # wait before a trial of the one that failed; doubled after each failed trial, up to an hour

    def __post_init__(self) -> None:
        """Refuse values without a meaning. Raises ConfigurationError (table failover)."""
        for key in ("failures", "window_s", "retry_s"):
            if getattr(self, key) <= 0:
                raise ConfigurationError("must be above 0", table="failover", key=key)


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """Settings of the choice among the variants that pass: `[selection]`."""

    objective: str = "latency"  # latency, throughput or energy (CPU time)
    require: str = ""  # least level: unverified, exercised, proven; "": any by hand, proven if signed (or as released)
    idle_before_trial_s: float = 2.0  # idle time before a variant is measured in the background
    threads: int = 0  # threads per session; 0: the profile's budget, at most one per core
    loads_at_once: ClassVar[int] = 2  # models tried and opened at the same time when the model directory is read

    def __post_init__(self) -> None:
        """Refuse an unknown objective and a gate that nothing passes. Raises ConfigurationError (table selection)."""
        if self.threads > THREADS_LIMIT:
            raise ConfigurationError(
                f"must be between 0 and {THREADS_LIMIT}, not {self.threads}", table="selection", key="threads"
            )
        if self.require not in {"", *LEVELS}:
            known = ", ".join(LEVELS)
            raise ConfigurationError(
                f"must be one of {known}, not {self.require!r:.40}", table="selection", key="require"
            )
        if self.objective not in OBJECTIVES:
            known = ", ".join(OBJECTIVES)
            raise ConfigurationError(
                f"must be one of {known}, not {self.objective!r:.40}", table="selection", key="objective"
            )


@dataclass(frozen=True, slots=True)
class ResidentSettings:
    """`[[residency.model]]`: when the versions of one model are open."""

    model: str  # the model that this is about
    pin: bool = False  # opened at the start and never closed to make room
    priority: int = 1  # versions with a larger number are closed first
    idle_s: float = 0.0  # closed after this time without a request; 0: stays open
    warm_at: tuple[str, ...] = ()  # local times, "HH:MM", at which it is opened if it is closed

    def __post_init__(self) -> None:
        """Refuse invalid values. Raises ConfigurationError (table residency.model)."""
        if not self.model:
            raise ConfigurationError("must name a model", table="residency.model", key="model")
        if self.priority < 1:
            raise ConfigurationError("must be at least 1", table="residency.model", key="priority")
        if self.pin and self.idle_s:
            raise ConfigurationError("contradicts pin; take one of them out", table="residency.model", key="idle_s")
        for time in self.warm_at:
            if not WARM_AT.fullmatch(time):
                problem = f'must be local times such as "07:30", not {time!r:.40}'
                raise ConfigurationError(problem, table="residency.model", key="warm_at")


@dataclass(frozen=True, slots=True)
class AcceleratorMemorySettings:
    """`[[residency.accelerator]]`: budget of an accelerator that has memory of its own."""

    kind: str  # the accelerator, as `edge-gateway probe` names it
    memory_mib: int  # MiB that open versions may take of it

    def __post_init__(self) -> None:
        """Refuse a budget of nothing, or of the device's memory. Raises ConfigurationError (residency.accelerator)."""
        if self.kind not in ACCELERATOR_KINDS:
            problem = f"must be one of {', '.join(ACCELERATOR_KINDS)}, not {self.kind!r:.40}"
            raise ConfigurationError(problem, table="residency.accelerator", key="kind")
        if self.memory_mib < 1:
            raise ConfigurationError("must be at least 1", table="residency.accelerator", key="memory_mib")


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """`[[residency.cache]]`: answers of one model that are kept, and given to requests of the same content."""

    model: str  # the model whose answers are kept
    mib: int = 16  # MiB of answers, at most; the least recently used go first
    age_s: float = 60.0  # an older answer is not given

    def __post_init__(self) -> None:
        """Refuse a cache that holds nothing. Raises ConfigurationError (table residency.cache)."""
        if not self.model:
            raise ConfigurationError("must name a model", table="residency.cache", key="model")
        for key in ("mib", "age_s"):
            if getattr(self, key) <= 0:
                raise ConfigurationError("must be more than 0", table="residency.cache", key=key)


@dataclass(frozen=True, slots=True)
class ResidencySettings:
    """`[residency]`: which model versions are open, and answers that are kept."""

    memory_mib: int = 0  # MiB that open model versions may take here; 0: as the profile says, else all stay open
    accelerator: tuple[AcceleratorMemorySettings, ...] = ()  # budgets of accelerators with memory of their own
    model: tuple[ResidentSettings, ...] = ()  # models that are treated in a way of their own
    cache: tuple[CacheSettings, ...] = ()  # models whose answers are kept
    room_s: ClassVar[float] = 30.0  # longest time that a closed version waits for room; its requests are then refused
    failover_room_s: ClassVar[float] = 2.0  # ... that the next variant of one that failed does; its requests are held
    room_poll_s: ClassVar[float] = 0.02  # pause before looking again whether a version is idle: no event tells of it
    wake_s: ClassVar[float] = 90.0  # longest time that a request waits for a closed version, with or without deadline
    retry_s: ClassVar[float] = 1.0  # pause after a version could not be opened; it doubles
    retry_limit_s: ClassVar[float] = 60.0  # ... up to this one
    tick_s: ClassVar[float] = 1.0  # period of the search for idle versions and of the clock of warm_at

    def __post_init__(self) -> None:
        """Refuse what is named twice. Raises ConfigurationError (table residency)."""
        _refuse_twice("accelerator", [each.kind for each in self.accelerator], "residency")
        _refuse_twice("model", [each.model for each in self.model], "residency")
        _refuse_twice("cache", [each.model for each in self.cache], "residency")

    @property
    def budgets(self) -> Mapping[str, int]:
        """Return the budgets in bytes, by accelerator; that of the process is CPU's."""
        own = {CPU: self.memory_mib} if self.memory_mib else {}
        return {
            kind: mib * MIB for kind, mib in (own | {each.kind: each.memory_mib for each in self.accelerator}).items()
        }

    def of(self, model: str) -> ResidentSettings:
        """Return the settings of a model."""
        return next((each for each in self.model if each.model == model), ResidentSettings(model))
