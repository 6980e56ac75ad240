"""Bounds of the engine, each with its unit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest import LEVELS
from gateway.domain.selection import OBJECTIVES

THREADS_LIMIT = 1024
"""More threads than any device of ours has cores; a typing error beyond."""


POLICIES = ("reject", "oldest", "latest")
"""What a full queue does: refuse the newcomer, drop who waits longest, or keep only the newest of each stream."""
EVERY_CALLER = "*"
"""Stands for each caller that has no quota of its own."""
DELAY_LIMIT_US = 1_000_000
"""Nobody means to hold requests back for longer than a second."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """`[[limits.queue]]`: how requests for one model wait."""

    model: str  # the model whose queue this is
    policy: str = "reject"  # when full: reject the newcomer, drop the oldest, or keep the latest of each stream
    requests: int = 0  # requests waiting per model version; 0: as [limits] queue_requests says
    delay_us: int = 0  # how long a request may wait for others to be joined with, where joining pays
    priority: int = 1  # of requests that name none; 1 is served first
    join: bool = True  # whether requests may share a run, where the trial proved that their answers stay the same

    def __post_init__(self) -> None:
        """Refuse what cannot be meant. Raises ConfigurationError (table limits.queue)."""
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
    """`[[limits.quota]]`: what one caller may ask for."""

    caller: str  # token's name, certificate's name, uid:<uid> or address; "*": each caller without a quota of its own
    requests_per_s: float = 0.0  # requests a second, on average; 0: not bounded
    burst: int = 0  # requests at once after a pause; 0: as many as requests_per_s, at least 1
    in_flight: int = 0  # requests under way at a time; 0: not bounded

    def __post_init__(self) -> None:
        """Refuse what bounds nothing. Raises ConfigurationError (table limits.quota)."""
        if not self.caller:
            raise ConfigurationError('must name a caller, or "*"', table="limits.quota", key="caller")
        if not (self.requests_per_s or self.in_flight):
            raise ConfigurationError(
                "bounds nothing; set requests_per_s or in_flight", table="limits.quota", key="caller"
            )
        if self.burst and not self.requests_per_s:
            raise ConfigurationError("needs requests_per_s beside it", table="limits.quota", key="burst")

    @property
    def allowance(self) -> float:
        """Requests that a full bucket holds."""
        return float(self.burst or max(1.0, self.requests_per_s))


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`[limits]`: what one request and one queue may hold."""

    max_batch_rows: int = 1024  # rows one request may carry; announced as max_batch_size
    batch_rows: int = 32  # rows that queued requests are joined to, where batching was measured to pay
    batch_gain: float = 1.2  # one row's time over a batched row's, below which requests are not joined
    queue_requests: int = 1024  # requests waiting per model version, as many as calls; one more is OVERLOADED
    inline_limit_us: int = 300  # a run measured shorter happens on the event loop; 0: none does
    inline_overruns: int = 10  # times inline_limit_us that a run may take of the event loop before its model leaves it
    run_limit_s: float = (
        30.0  # a run on a worker that takes longer is ended where its runtime can; its callers are refused
    )
    run_overruns: int = 10  # ... or this many times what the trial measured for its rows, where that is longer
    run_end_s: float = 10.0  # an overlong run that does not end after this long takes its version out of service
    max_hangs: int = 3  # versions are opened again after so many such runs; then they stay out until they are loaded
    turn_us: int = 1000  # time that runs may take on the event loop before it looks at its sockets again
    forms: int = 256  # shapes of requests remembered per model version, so that they are checked once
    thread_wait_s: float = 1.0  # how long a run waits for the profile's threads before it goes without
    quota_callers: int = 1024  # callers whose quotas are kept; beyond, the longest idle is forgotten
    retry_after_s: float = 1.0  # what an OVERLOADED or UNAVAILABLE caller is told to wait
    ready_within_s: float = 10.0  # a start announces itself ready after this long, whatever models still load
    drain_s: float = 10.0  # how long a version that is replaced or unloaded may finish its queue
    staged_versions: int = 8  # versions loaded for updates that are not committed yet
    lease_limit_s: float = 3600.0  # longest time that a route may last without being renewed
    comparisons: int = 4  # answers of two versions waiting to be compared; each keeps the outputs of both
    image_bytes: int = 32 * 1_048_576  # an encoded image larger than this is refused
    image_pixels: int = 40_000_000  # images of one request that decode to more in all are refused before that
    image_threads: int = 1  # images decoded at once
    request_slack_bytes: int = (
        65_536  # of one request for names, parameters and id, next to what its model's shapes take
    )
    decode_inline_us: int = 500  # time that decoding a request may take on the event loop before a thread goes on
    decode_threads: int = 1  # requests decoded at once by threads; callers take turns
    queue: tuple[QueueSettings, ...] = ()  # models whose requests wait in a way of their own
    quota: tuple[QuotaSettings, ...] = ()  # callers that may not ask for all there is

    def __post_init__(self) -> None:
        """Refuse bounds that nothing passes. Raises ConfigurationError (table limits)."""
        for key in AT_LEAST_ONE:
            if getattr(self, key) < 1:
                raise ConfigurationError("must be at least 1", table="limits", key=key)
        for key in ("run_limit_s", "run_end_s"):
            if getattr(self, key) <= 0:
                raise ConfigurationError("must be more than 0", table="limits", key=key)
        _refuse_twice("queue", [queue.model for queue in self.queue])
        _refuse_twice("quota", [quota.caller for quota in self.quota])

    def queue_of(self, model: str) -> QueueSettings:
        """How requests for `model` wait; its `requests` are set."""
        own = next((queue for queue in self.queue if queue.model == model), QueueSettings(model))
        return own if own.requests else replace(own, requests=self.queue_requests)


AT_LEAST_ONE = (
    *(
        "max_batch_rows",
        "batch_rows",
        "queue_requests",
        "inline_overruns",
        "run_overruns",
        "turn_us",
        "forms",
        "quota_callers",
    ),
    *("image_bytes", "image_pixels", "image_threads", "staged_versions", "comparisons"),
    *("request_slack_bytes", "decode_threads"),
)


def _refuse_twice(key: str, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"names {twice!r:.100} twice; write one entry", table="limits", key=key)


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """`[selection]`: what decides among the variants that pass."""

    objective: str = "latency"  # latency, throughput or energy (CPU time)
    require: str = ""  # least level: unverified, exercised, proven; "": any by hand, proven if signed (or as released)
    loads_at_once: int = 2  # models tried and opened at the same time when the model directory is read
    idle_before_trial_s: float = 2.0  # quiet time before a variant is measured in the background
    threads: int = 0  # threads per session; 0: the profile's budget, at most one per core

    def __post_init__(self) -> None:
        """Refuse an unknown objective and a gate that nothing passes. Raises ConfigurationError (table selection)."""
        if self.loads_at_once < 1:
            raise ConfigurationError("must be at least 1", table="selection", key="loads_at_once")
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
