"""What happened, as values: the engine says it once, logs and metrics each make of it what they want."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServableChanged:
    """A model version moved to another state; `reason` says why where it ended badly."""

    model: str
    version: str
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class VariantChosen:
    """A variant was chosen for a model version, and why; its level of verification and what its trial remarked."""

    model: str
    version: str
    variant: str
    accelerator: str
    reason: str
    level: str = ""
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrialFinished:
    """A variant was tried in a throw-away process."""

    model: str
    version: str
    variant: str
    accelerator: str
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ModelRefused:
    """A model on disk cannot be served: what is wrong and where. The others serve."""

    model: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class EntryIgnored:
    """A file or folder of the model directory that belongs to no model version. `path` is relative to the directory."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunFailed:
    """A run raised: every request of that batch was answered INTERNAL."""

    model: str
    version: str
    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class LoopLeft:
    """A run took longer on the event loop than allowed: the model runs on its worker from now on."""

    model: str
    version: str
    variant: str
    took_us: int
    limit_us: int


@dataclass(frozen=True, slots=True)
class RunOverlong:
    """A run took longer than it may: its callers are refused, and it is ended where its runtime can do that."""

    model: str
    version: str
    variant: str
    rows: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class RunHung:
    """A run did not end: its version is taken out of service, and opened again where that happens rarely."""

    model: str
    version: str
    variant: str
    rows: int


@dataclass(frozen=True, slots=True)
class JoiningStopped:
    """A joined run failed whose requests succeeded apart: requests are not joined any more."""

    model: str
    version: str
    variant: str
    reason: str


@dataclass(frozen=True, slots=True)
class PriorityRefused:
    """The kernel refused a model's thread its lower priority: it runs beside the event loop as an equal."""

    model: str
    version: str
    reason: str


@dataclass(frozen=True, slots=True)
class RouteChanged:
    """Requests that name no version are shared out anew: `weights` in percent, by version; `shadow` is compared."""

    model: str
    weights: Mapping[str, int]
    shadow: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LeaseRanOut:
    """Nobody renewed a route: what is committed answers again. `weights` are those that ended."""

    model: str
    weights: Mapping[str, int]


Event = (
    ServableChanged
    | VariantChosen
    | TrialFinished
    | ModelRefused
    | EntryIgnored
    | RunFailed
    | LoopLeft
    | RunOverlong
    | RunHung
    | JoiningStopped
    | PriorityRefused
    | RouteChanged
    | LeaseRanOut
)
Publish = Callable[[Event], None]
