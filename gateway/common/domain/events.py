"""Domain events as values: the engine publishes each once, and logs and metrics use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServableChanged:
    """Change of a model version's state; `reason` says why if the change was a failure."""

    model: str
    version: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class VariantChosen:
    """Choice of a variant for a model version, with the reason, its level of verification and its trial's remarks."""

    model: str
    version: str
    variant: str
    accelerator: str
    reason: str
    level: str = ""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """End of a trial of a variant in a child process."""

    model: str
    version: str
    variant: str
    accelerator: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ModelRefused:
    """Refusal of a model on disk; `reason` states the problem and its place. The other models are served."""

    model: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModelUndecided:
    """End of an attempt to load a model that did not decide; `reason` states the problem and the next attempt."""

    model: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class EntryIgnored:
    """Entry of the model directory that belongs to no model version. `path` is relative to the directory."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunFailed:
    """Run that raised: every request of its batch was answered INTERNAL."""

    model: str
    version: str
    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoopLeft:
    """Runs that took longer on the event loop than allowed, `took_us` the last: their model runs on its worker.

    After `retry_s` it is tried again on the event loop.
    """

    model: str
    version: str
    variant: str
    took_us: int
    limit_us: int
    overruns: int
    retry_s: float


@dataclass(frozen=True, slots=True)
class BreakerRetried:
    """Attempt of `what` a model had left after faults: runs on the event loop, or joined runs."""

    model: str
    version: str
    variant: str
    what: str


@dataclass(frozen=True, slots=True)
class RunOverlong:
    """Run that exceeded its time limit: its callers are refused, and it is cancelled if its runtime can do that."""

    model: str
    version: str
    variant: str
    rows: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class RunHung:
    """Run that did not end: its version is taken out of service, and opened again unless that happened too often."""

    model: str
    version: str
    variant: str
    rows: int


@dataclass(frozen=True, slots=True)
class CandidateFailed:
    """Failure of a variant in service, after which another one serves if there is one. It is tried again later."""

    model: str
    version: str
    variant: str
    accelerator: str
    reason: str
    retry: str


@dataclass(frozen=True, slots=True)
class FailedOver:
    """Replacement of a variant that failed: `took_ms` after that, `requests` that waited run on this one."""

    model: str
    version: str
    variant: str
    accelerator: str
    requests: int
    took_ms: int


@dataclass(frozen=True, slots=True)
class CandidateRecovered:
    """Return of a variant to service after its trial has passed."""

    model: str
    version: str
    variant: str
    accelerator: str


@dataclass(frozen=True, slots=True)
class AcceleratorChanged:
    """Disappearance or return of an accelerator."""

    accelerator: str
    device: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class JoiningStopped:
    """End of joining for `retry_s`: a joined run failed whose requests succeeded one by one."""

    model: str
    version: str
    variant: str
    reason: str
    retry_s: float


@dataclass(frozen=True, slots=True)
class ProofContradicted:
    """A graph proves that rows are independent, and runs of sample rows differ: the proof or a kernel is wrong."""

    model: str
    version: str
    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class PriorityRefused:
    """Refusal of the kernel to lower the priority of a model's thread, which now competes with the event loop."""

    model: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class RouteChanged:
    """Change of the shares of requests that name no version: `weights` in percent by version; `shadow` is compared."""

    model: str
    weights: Mapping[str, int]
    shadow: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaseRanOut:
    """End of a route that was not renewed in time: committed versions answer again.

    `weights` are the ones that ended.
    """

    model: str
    weights: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ModelEvicted:
    """Closing of a version that serves, for lack of memory or because it was idle. The next request opens it again."""

    model: str
    version: str
    reason: str
    freed_bytes: int


@dataclass(frozen=True, slots=True)
class ModelWoken:
    """Opening of a closed version, which took `took_s` with its wait for room; `problem` says why it failed."""

    model: str
    version: str
    took_s: float
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ImagesDecoded:
    """Decoding of a request's images, which may leave unused memory in malloc. It is not logged."""


Event = (
    ServableChanged
    | VariantChosen
    | TrialFinished
    | ModelRefused
    | ModelUndecided
    | EntryIgnored
    | RunFailed
    | LoopLeft
    | BreakerRetried
    | RunOverlong
    | RunHung
    | CandidateFailed
    | FailedOver
    | CandidateRecovered
    | AcceleratorChanged
    | JoiningStopped
    | ProofContradicted
    | PriorityRefused
    | RouteChanged
    | LeaseRanOut
    | ModelEvicted
    | ModelWoken
    | ImagesDecoded
)
Publish = Callable[[Event], None]
