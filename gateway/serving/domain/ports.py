"""Interfaces between packages. A package imports these and not its neighbours; `gateway.serving.daemon` wires them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.selection import Candidate
from gateway.common.domain.tensor import Raw, Tensors
from gateway.common.domain.verdict import Measurement, SessionBudget, Signature
from gateway.serving.domain.infer import InferRequest, InferResponse, ResponseForm
from gateway.serving.domain.sizes import RequestSizes

if TYPE_CHECKING:  # they would take a quarter of the start of a worker process
    from gateway.common.domain.activation import Activation
    from gateway.common.domain.statistics import Placement, ServableStatistics

T = TypeVar("T")
Part = Callable[[Tensors], bool]
"""Receiver of the outputs of a run that are new, texts which it may keep. Called by the run's thread.

It returns False once no more are wanted.
"""


@dataclass(frozen=True, slots=True)
class RowInput:
    """An input with rows on `axis`. `shape`: −1 for a size that the caller chooses."""

    shape: tuple[int, ...]
    axis: int = 0


@dataclass(frozen=True, slots=True)
class RowTensors:
    """Inputs with rows, and the axis on which each output needs them."""

    inputs: Mapping[str, RowInput]
    outputs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RowProof:
    """Result: proved, or the first operator (with its name) that ended the proof, and why."""

    operator: str = ""
    reason: str = ""

    def __str__(self) -> str:
        """Return where the proof ended, and why."""
        return f"{self.operator}: {self.reason}" if self.operator else self.reason

    @property
    def is_proved(self) -> bool:
        """Return True if the rows are independent."""
        return not self.reason


class Session(Protocol):
    """Compiled variant on one accelerator. Used by one thread at a time, not always the same one."""

    @property
    def peers(self) -> Sequence[Session]:
        """Return the sessions of the same compiled variant that `widen` made, each for one more thread."""

    @property
    def lends(self) -> bool:
        """Return True if outputs are lent until the next run or close; otherwise the caller may keep them."""

    @property
    def remarks(self) -> tuple[str, ...]:
        """Return findings of the runtime about parts of the file that are not served. They do not refuse the file."""

    @property
    def rows(self) -> RowTensors | None:
        """Return the file's own tensors with the axes of their rows; None if its rows run one after the other."""

    @property
    def in_parts(self) -> bool:
        """Return True if `run_in_parts` gives outputs in parts. The runs of such a session take long, one row each."""

    def run(self, inputs: Tensors) -> Tensors:
        """Run with the manifest's names, dtypes and layouts for inputs and outputs, before postprocess.

        `lends` states who owns the outputs. Blocks without the GIL. Raises VariantError if the engine reports an error.
        """

    def run_in_parts(self, inputs: Tensors, part: Part) -> Tensors:
        """Run, if the session is `in_parts`, and pass the outputs that are new to `part` in each step of the engine.

        A step without new outputs passes {}. An output that comes in parts is complete in them when the run returns: a
        caller that wants parts gets nothing else of it. Once `part` returns False, the run ends within one step.
        Returns the whole outputs up to there. Raises as `run` does, with a reason that begins with "the request: " if
        the inputs are at fault.
        """

    def cancel(self) -> bool:
        """Ask the run in progress to end with an error; return False if the engine cannot. Called by any thread."""

    def widen(self, runs: int) -> None:
        """Allow `runs` runs at a time, by `peers` that share the compiled variant. Raises VariantError."""

    def close(self) -> None:
        """Free the engine's memory, with that of the peers. Calling it twice is harmless."""


class Runtime(Protocol):
    """Inference engine. Importing its module is cheap: heavy imports happen inside these methods."""

    name: str

    def version(self) -> str:
        """Return the installed engine's version. Raises VariantError if it is absent or must not be used."""

    def import_engine(self) -> None:
        """Import the engine, open nothing and start no thread: the process may be forked. Raises VariantError."""

    def devices(self, plugin: str = "") -> Sequence[str]:
        """Return the engine's own list ("CPU", "GPU", "CUDAExecutionProvider"). Called in a child that may die.

        With the provider of one of its plugins, return the kinds of accelerators that this one offers.
        """

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> Session:
        """Load and compile. `files` is the folder to which artifact paths are relative. Raises VariantError."""

    def inspect(self, file: Path) -> Signature:
        """Return inputs and outputs of a bare model file. Called in a child that may die. Raises VariantError."""

    def prove_rows(self, variant: Variant, files: Path, tensors: RowTensors) -> RowProof:
        """Return whether the graph proves that rows are independent. Runs in a child. Raises VariantError."""

    def operators(self, variant: Variant, files: Path) -> frozenset[str]:
        """Return the operators of the variant's graph, by the format's names. Runs in a child. Raises VariantError."""


class Decoding(Protocol):
    """Execution of work that may be too long for the event loop."""

    async def run(self, caller: str, steps: Generator[None, None, T], *, apart: bool = False) -> T:
        """Run `steps` to their end and return their value.

        The first step runs here, unless `apart`. Later ones may run on one of a bounded number of threads, which serve
        callers in turn. A step takes about 1 ms at most. Raises the errors of the steps, and OVERLOADED if no thread
        starts.
        """


class Inference(Protocol):
    """Interface of the engine for frontends. Every method may raise RequestError."""

    @property
    def decoding(self) -> Decoding:
        """Return the threads for requests that take long to decode, and answers that take long to encode."""

    def sizes(self, model: str) -> RequestSizes:
        """Return the size of the largest request that any version of a model accepts. Raises as `describe` does."""

    def check(self, request: InferRequest) -> None:
        """Refuse a request that no content could make acceptable: by names, datatypes, shapes and rows of its inputs.

        Raises as `infer` would.
        """

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer one request. Cancelling the awaiting task abandons this request and affects no other."""

    def infer_in_parts(self, request: InferRequest) -> AsyncGenerator[tuple[InferResponse, bool], None]:
        """Yield the parts of an answer, each with False, then the answer with True: what was in no part.

        A model whose session is not in parts gives an answer only. Closing the generator abandons the request.
        """

    def describe(self, model: str, version: str = "") -> ModelManifest:
        """Return the manifest of a served version. Raises NOT_FOUND if it is unknown, UNAVAILABLE if not ready."""

    def ready(self, model: str = "", version: str = "") -> bool:
        """Return True if the model version (or, with "", the server) answers now; False if unknown. Never raises."""

    def placement(self, model: str, version: str = "") -> Placement:
        """Return the placement of the version that serves now. Raises as `describe` does."""


class Sink(Protocol):
    """Receiver of the answers to submitted requests, on the event loop, each with its `token`.

    A request that asks for parts (`InferRequest.in_parts`) may get any number of them before its answer.

    The answers of one run come one after the other, then one `flush`, at which the sink may write. Sinks are compared
    by identity (hashable).
    """

    def part(self, token: Any, response: InferResponse) -> None:
        """Accept the outputs that are new, of a request that is answered in parts. `flush` follows. Must not raise."""

    def answer(self, token: Any, response: InferResponse) -> None:
        """Accept the response to a request: after parts, what was not in them. Must not raise."""

    def refuse(self, token: Any, error: RequestError) -> None:
        """Accept the refusal or drop of a request. Must not raise."""

    def flush(self) -> None:
        """Accept the end of a run's answers. Must not raise."""


class Pending(Protocol):
    """A submitted request that is not answered yet."""

    def cancel(self) -> None:
        """Cancel the request: no answer follows. Harmless after the answer."""


class RawSink(Protocol):
    """Receiver of the answers to requests of a `RawBatch`, as bytes. Otherwise like a `Sink`."""

    def answer_raw(self, token: Any, form: ResponseForm, contents: Sequence[Raw]) -> None:
        """Accept the outputs of a request: little-endian bytes in the order of `form`. Must not raise."""

    def submit_again(self, token: Any) -> None:
        """Submit a request as an `InferRequest`: its batch does not answer it. `flush` follows. Must not raise."""

    def flush(self) -> None:
        """Accept the end of a run's answers. Must not raise."""


class RawBatch(Protocol):
    """Requests of one form that wait for the end of the pass of the event loop, with raw contents."""

    def add(self, sink: RawSink, token: Any, contents: Sequence[Raw], now_ns: int, ends_ns: int | None) -> bool:
        """Add a request with one content for each input, little-endian, in the order of the first request's inputs.

        Return False if it must be submitted as an `InferRequest`. Otherwise one `answer_raw` or `submit_again`
        follows, never within this call. `now_ns`: its arrival. `ends_ns`: its deadline.
        """


class Submission(Protocol):
    """Inference without a task per request, for frontends that answer thousands a second on one core."""

    def submit(self, request: InferRequest, sink: Sink, token: Any) -> Pending:
        """Queue a request. Raises RequestError if admission refuses it.

        Otherwise exactly one `answer` or `refuse` follows, never within this call, unless the request is cancelled.
        """

    def raw_batch(self, request: InferRequest) -> RawBatch | None:
        """Return the batch for requests that differ from `request` in contents, id, caller and deadline only.

        None if the engine needs each of them as an object. `request` was submitted before.
        """

    def hold(self) -> None:
        """Delay submitted requests until `release`.

        A caller that reads many sockets in a row releases after all of them.
        """

    def release(self) -> None:
        """Run the delayed requests; answers come within this call."""


class InferenceEngine(Inference, Submission, Protocol):
    """Inference with and without a task per request."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of RepositoryIndex. `state` is READY, UNAVAILABLE, LOADING or UNLOADING."""

    name: str
    version: str
    state: str
    reason: str = ""


class Repository(Protocol):
    """Models, as a frontend may list and control them."""

    def index(self) -> Sequence[IndexEntry]:
        """Return every known model version, with the reason if it is not ready, sorted by name and version."""

    def versions(self, model: str) -> Sequence[str]:
        """Return the versions of `model` that are ready, oldest first. Raises NOT_FOUND for an unknown model."""

    async def load(self, model: str) -> None:
        """Read the model's folder again and serve the versions that pass.

        Raises DENIED unless `[models] control = true`.
        """

    async def unload(self, model: str) -> None:
        """Drain and unload all versions. Raises DENIED unless `[models] control = true`."""


class Statistics(Protocol):
    """Counters per model version."""

    def statistics(self, model: str = "", version: str = "") -> Sequence[ServableStatistics]:
        """Return statistics of one version, of all versions of a model, or of all.

        Raises NOT_FOUND if it is unknown.
        """


@dataclass(frozen=True, slots=True)
class Loaded:
    """A release loaded on this device: the variant that passed, its accelerator, and why it was chosen.

    `measured` by its trial; None if the trial ended before.
    """

    variant: str
    accelerator: str
    reason: str
    measured: Measurement | None = None


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of golden rows that a staged version ran: 0 rows without a golden set, or if requests came first."""

    rows: int
    passed: bool
    reason: str


class Serving(Protocol):
    """Commands of the update agent. Each method may be repeated, and may raise RequestError."""

    async def plan(self, activation: Activation) -> Sequence[Candidate]:
        """Return every candidate of a signed release on this device. Nothing is loaded.

        Only the manifest of the release is here. Raises VariantError if the release does not verify.
        """

    async def load(self, activation: Activation) -> Loaded:
        """Verify a release, try it in a child process, open and warm it. It serves nothing yet.

        Raises VariantError with every reason if it cannot serve.
        """

    async def route(self, model: str, weights: Mapping[str, int], *, shadow: str = "", lease_s: float) -> None:
        """Share requests that name no version, in percent (100 in all); also send them to `shadow` for comparison.

        Applied as a whole or refused: INVALID, NOT_FOUND. Ends `lease_s` after the last call: committed versions answer
        from then on.
        """

    async def replay(self, model: str, version: str) -> Replayed:
        """Run the golden set of a version from `load` while no requests come. Raises NOT_FOUND if it is not loaded."""

    async def unload(self, model: str, version: str, drain_s: float) -> None:
        """Drain and free a version from `load`; one that is not loaded is no error.

        Raises DENIED for a committed one.
        """

    async def commit(self) -> None:
        """Serve the releases that the store commits. Loaded versions continue; others are retired."""


@dataclass(frozen=True, slots=True)
class SettingsStanding:
    """Settings of the fleet: `target` and `sha256` of those in force ("": the device's own alone), `committed` ones.

    `trial_ends_in_s`: time after which those in force are taken back unless they are confirmed; None: they are
    committed. `failed`, `failed_sha256`: those that were taken back last, for the `reason`. `problem`: why committed
    settings are not in force, or cannot be kept.
    """

    target: str = ""
    sha256: str = ""
    trial_ends_in_s: float | None = None
    committed: str = ""
    failed: str = ""
    failed_sha256: str = ""
    reason: str = ""
    problem: str = ""


class SettingsTrials(Protocol):
    """Trials of the fleet's settings. Each method may raise RequestError."""

    def standing(self) -> SettingsStanding:
        """Return what is in force and what failed last."""

    async def try_out(self, activation: Activation, within_s: float) -> None:
        """Verify and check a release of settings, then restart with them on trial.

        Unless they are confirmed `within_s` seconds after the restart, the gateway restarts without them. Raises
        VariantError with the reason if they do not verify, set what they may not, or do not fit this device.
        """

    async def confirm(self, sha256: str) -> None:
        """Commit what is on trial. Raises VariantError if other settings are in force."""

    async def revert(self, sha256: str, reason: str) -> None:
        """Restart with the committed settings if these are on trial. Raises VariantError if others are."""


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """State of a model version: `state` as in IndexEntry, or LOADED if it serves nothing yet.

    `weight` is its share, in percent, of the requests that name no version. `placement` is None if it is not loaded.
    `undecided`: the last attempt to load it had no result, and it is tried again.
    """

    model: str
    version: str
    state: str
    reason: str = ""
    weight: int = 0
    placement: Placement | None = None
    undecided: bool = False


class Standings(Protocol):
    """Every model version, including those that no caller can reach."""

    def standings(self) -> Sequence[VersionStatus]:
        """Return the standings, sorted by name and version."""
