"""The seams. A room imports these and nothing of its neighbours; `gateway.daemon` puts the pieces together."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway.domain.activation import Activation
from gateway.domain.errors import RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.manifest import ModelManifest, Variant
from gateway.domain.selection import Candidate
from gateway.domain.sizes import RequestSizes
from gateway.domain.statistics import Placement, ServableStatistics
from gateway.domain.tensor import Tensors
from gateway.domain.verdict import Budget, Measurement, Signature

T = TypeVar("T")


class Session(Protocol):
    """A compiled variant on one accelerator. Used by one thread at a time, not always the same one."""

    @property
    def lends(self) -> bool:
        """Whether outputs are lent until the next run or close; else they are the caller's to keep."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Findings of the runtime about the file, which refuse nothing: parts of it that are not served."""

    def run(self, inputs: Tensors) -> Tensors:
        """Manifest names, dtypes and layouts in and out, before postprocess; `lends` says whose the outputs are.
        Blocks without the GIL. Raises VariantError where the engine reports an error."""

    def cancel(self) -> bool:
        """Ask the run in progress to end with an error. Called by any thread; False where the engine cannot."""

    def close(self) -> None:
        """Free the engine's memory. Calling it twice is harmless."""


class Runtime(Protocol):
    """An inference engine. Importing its module is cheap: heavy imports happen inside these methods."""

    name: str

    def version(self) -> str:
        """The installed engine's version. Raises VariantError where it is absent or must not be used."""

    def devices(self) -> Sequence[str]:
        """What the engine itself lists ("CPU", "GPU", "CUDAExecutionProvider"). Called in a child that may die."""

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: Budget) -> Session:
        """Load and compile. `files` is the folder that artifact paths are relative to. Raises VariantError."""

    def inspect(self, file: Path) -> Signature:
        """Inputs and outputs of a bare model file. Called in a child that may die. Raises VariantError."""

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        """Operators of the variant's graph, by the format's own names. Called in a child. Raises VariantError."""


class Decoding(Protocol):
    """Runs work that may be too long for the event loop."""

    async def run(self, caller: str, steps: Generator[None, None, T], *, apart: bool = False) -> T:
        """Run `steps` to their end and return their value: the first step here (`apart`: none), later ones perhaps on
        one of a bounded number of threads that take callers in turn. A step takes about 1 ms at most. Raises what they
        raise; OVERLOADED where no thread can begin."""


class Inference(Protocol):
    """All that a frontend may know of what answers a request. Every method may raise RequestError."""

    @property
    def decoding(self) -> Decoding:
        """Threads for requests that take long to decode."""

    def sizes(self, model: str) -> RequestSizes:
        """Return the largest request that any version of a model takes. Raises as `describe` does."""

    def check(self, request: InferRequest) -> None:
        """Refuse a request that no content could make acceptable: by names, datatypes, shapes and rows of its inputs.
        Raises as `infer` would."""

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer one request. Cancelling the awaiting task abandons the request and disturbs nobody else."""

    def describe(self, model: str, version: str = "") -> ModelManifest:
        """The manifest of a served version. NOT_FOUND for an unknown model or version, UNAVAILABLE if not ready."""

    def ready(self, model: str = "", version: str = "") -> bool:
        """Whether the model version (or, with "", the server) answers now. False for the unknown; never raises."""

    def placement(self, model: str, version: str = "") -> Placement:
        """What serves a version now. Raises as `describe` does."""


class Sink(Protocol):
    """Takes the answers of submitted requests, on the event loop, and gives each its `token` back.

    The answers of one run come one after the other, then one `flush`: what a sink writes, it may write then. A sink is
    told apart by identity (hashable).
    """

    def answer(self, token: Any, response: InferResponse) -> None:
        """The request was answered. Must not raise."""

    def refuse(self, token: Any, error: RequestError) -> None:
        """The request was refused or dropped. Must not raise."""

    def flush(self) -> None:
        """No more comes from this run. Must not raise."""


class Pending(Protocol):
    """A submitted request that is not answered yet."""

    def cancel(self) -> None:
        """Nobody waits for the answer any more: none comes. Harmless after the answer."""


class Submission(Protocol):
    """Inference without a task per request, for frontends that answer thousands a second on one core."""

    def submit(self, request: InferRequest, sink: Sink, token: Any) -> Pending:
        """Queue a request. Raises RequestError where it is refused at the door; else exactly one `answer` or `refuse`
        follows, never within this call, unless it is cancelled."""

    def hold(self) -> None:
        """Let what is submitted wait for `release`: whoever reads many sockets in a row says when it has read all."""

    def release(self) -> None:
        """Run what waits; answers come within this call."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of RepositoryIndex. `state` is READY, UNAVAILABLE, LOADING or UNLOADING."""

    name: str
    version: str
    state: str
    reason: str = ""


class Repository(Protocol):
    """Models as a frontend may list and command them."""

    def index(self) -> Sequence[IndexEntry]:
        """Every known model version, refused ones with the reason, sorted by name and version."""

    def versions(self, model: str) -> Sequence[str]:
        """Versions of `model` that are ready, oldest first. NOT_FOUND for an unknown model."""

    async def load(self, model: str) -> None:
        """Read the model's folder again and serve what passes. DENIED unless `[models] control = true`."""

    async def unload(self, model: str) -> None:
        """Drain and unload all versions. DENIED unless `[models] control = true`."""


class Statistics(Protocol):
    """Counters per model version."""

    def statistics(self, model: str = "", version: str = "") -> Sequence[ServableStatistics]:
        """Of one version, of all versions of a model, or of all. NOT_FOUND for the unknown."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a release became on this device: the variant that passed, where it runs (accelerator) and why it was chosen;
    `measured` by its trial, None where that got not so far."""

    variant: str
    accelerator: str
    reason: str
    measured: Measurement | None = None


class Serving(Protocol):
    """What the update agent may command. Each method may be repeated, and may raise RequestError."""

    async def plan(self, activation: Activation) -> Sequence[Candidate]:
        """Every candidate of a signed release on this device, of which only the manifest is here. Nothing is loaded.
        Raises VariantError where the release does not verify."""

    async def load(self, activation: Activation) -> Loaded:
        """Verify a release, try it in a throw-away process, open and warm it. It serves nothing yet. Raises
        VariantError with every reason where it cannot serve."""

    async def route(self, model: str, weights: Mapping[str, int], *, shadow: str = "", lease_s: float) -> None:
        """Share requests that name no version, in percent (100 in all), and ask the version `shadow`, too, for
        comparison. Applied whole or refused: INVALID, NOT_FOUND. Ends `lease_s` after the last call: what is committed
        answers then."""

    async def unload(self, model: str, version: str, drain_s: float) -> None:
        """Drain and free what `load` brought; harmless where that is gone. DENIED for what is committed."""

    async def commit(self) -> None:
        """Serve what the store commits: what is loaded goes on, what is not committed any more is retired."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a model version stands: `state` as in IndexEntry, or LOADED where it serves nothing yet; `weight` is its
    share, in percent, of the requests that name no version. `placement` is None where it is not loaded."""

    model: str
    version: str
    state: str
    reason: str = ""
    weight: int = 0
    placement: Placement | None = None


class Standings(Protocol):
    """Every model version, also those that no caller can reach."""

    def standings(self) -> Sequence[Standing]:
        """Sorted by name and version."""
