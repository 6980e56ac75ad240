"""Result of a trial of one variant on one accelerator of this device, in a child process."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

from gateway.common.domain.inventory import CPU, Accelerator, Cpu
from gateway.common.domain.manifest import LEVELS, ModelManifest, TensorSpec, Variant
from gateway.common.domain.noise import Conditions
from gateway.common.domain.tensor import DATATYPES


@dataclass(frozen=True, slots=True)
class SessionBudget:
    """Resources of one session: `threads` of a run, `runs` at a time, and the ladder step's options.

    For a trial, both are the most that it may choose: so many threads a run, and so many threads of all runs together.
    `objective` decides between them.
    `cache_dir`: a folder for what is compiled from this variant ("": none). `memory_bytes`: the most that it may add to
    the process (0: not bounded). `provider`: the plugin of the runtime that runs it ("": the runtime itself).
    `isolated`: the session serves from a worker process. `ran_bytes`: memory that its runs take, by its trial (0: not
    known).
    """

    threads: int = 1
    accelerator: str = CPU
    options: Mapping[str, str] = field(default_factory=dict)
    cache_dir: str = ""
    memory_bytes: int = 0
    provider: str = ""
    runs: int = 1
    objective: str = "latency"
    isolated: bool = False
    ran_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Cost of one-row runs on this device: wall time p50 and p99, CPU time (user + system), process memory added.

    `row_us` is the wall time per row in a batch (0: not batched). `quiet_us` and `quiet_row_us` are estimates for a
    quiet machine (0: as measured). `disturbed` says which of the `conditions` made the figures unreliable ("": none).
    `again_s`: when it was measured again for that reason, in seconds since the epoch (0: never). `busy_us`: time per
    run while all cores have runs (0: not measured).
    """

    p50_us: float
    p99_us: float
    cpu_us: float
    memory_bytes: int
    row_us: float = 0.0
    quiet_us: float = 0.0
    quiet_row_us: float = 0.0
    conditions: Conditions = Conditions()
    disturbed: str = ""
    again_s: float = 0.0
    busy_us: float = 0.0

    @property
    def run_us(self) -> float:
        """Return the time of a run, by which decisions are made: load alone does not change it."""
        return self.quiet_us or self.p50_us

    @property
    def batch_row_us(self) -> float:
        """Return the time of a row in a batch, by which decisions are made (0: not batched)."""
        return self.quiet_row_us or self.row_us

    @property
    def loaded_us(self) -> float:
        """Return the time per row while all cores have runs, as far as it was measured."""
        return (self.batch_row_us or self.run_us) * (self.busy_us / self.run_us if self.busy_us else 1.0)

    @property
    def remark(self) -> str:
        """Return what people must know of the conditions, or ""."""
        busy = f"measured while the machine was busy ({self.disturbed})" if self.disturbed else ""
        at = datetime.fromtimestamp(self.again_s, timezone.utc).isoformat(timespec="seconds") if self.again_s else ""
        later = f"measured again at {at}" if at else busy and "the gateway measures it again when it is idle"
        return "; ".join(filter(None, (busy, later)))


@dataclass(frozen=True, slots=True)
class Joining:
    """Permission for requests to share a run of one variant, or the reason against it.

    `basis` permits it: the graph has "proved" that no row's answer depends on other rows, or the author has "declared"
    it; "" for neither. `reason` says why not all the same. `difference` is what runs of sample rows showed: it ends a
    proof, and is a remark on a declaration. `rows` is the size of the largest run that was tried: no run joins more.
    """

    basis: str = ""
    reason: str = ""
    difference: str = ""
    rows: int = 1

    @property
    def allowed(self) -> bool:
        """Return True if requests may share a run."""
        return bool(self.basis) and not self.reason


@dataclass(frozen=True, slots=True)
class Parallel:
    """Measurement of runs at a time: `threads` of each, time of a run, time per run of all together, memory added."""

    threads: int
    runs: int
    run_us: float
    busy_us: float
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a trial: `passed` and the reason.

    `measured` is None if the trial ended before. `accuracy` on the golden set, and its loss against the golden answers;
    None without labels. `threads` of a run and `runs` at a time to serve with; `parallel` has what was measured to
    choose them (empty: nothing). `answered`: it compiled and ran to the end, correctly or not. A `transient` failure is
    not kept.

    `level` is one of LEVELS. `joining` is None if it was not tried. `unbounded` says why the time of a run has no
    bound that a trial could measure ("": it has one). `sample` numbers the generated inputs that were accepted (see
    `gateway.serving.runtimes.generate`), None if there are none. `remarks` are findings that refuse nothing.
    """

    passed: bool
    reason: str
    measured: Measurement | None = None
    accuracy: float | None = None
    accuracy_loss: float | None = None
    transient: bool = False
    threads: int = 1
    answered: bool = False
    level: str = LEVELS[0]
    joining: Joining | None = None
    unbounded: str = ""
    sample: int | None = None
    remarks: tuple[str, ...] = ()
    runs: int = 1
    parallel: tuple[Parallel, ...] = ()


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a bare model file, as a runtime reports them.

    `optional` inputs have a default in the file, and are inputs only where Triton's configuration says so.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    optional: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class PluginStatus:
    """Installed plugin of a runtime: the accelerators that it offers here (None: not asked), or the problem."""

    version: str
    accelerators: tuple[str, ...] | None = None
    problem: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """Availability of a runtime, or the problem and its remedy. `version` is None if no package is installed.

    `plugins` are those that are installed, by provider.
    """

    name: str
    version: str | None = None
    problem: str = ""
    remedy: str = ""
    plugins: Mapping[str, PluginStatus] = field(default_factory=dict)

    def version_of(self, provider: str) -> str:
        """Return the version on which a verdict depends: the runtime's and, if given, the plugin's."""
        version = self.version or ""
        return f"{version}, {provider} {self.plugins[provider].version}" if provider in self.plugins else version


def verdict_key(
    manifest: ModelManifest,
    variant: Variant,
    budget: SessionBudget,
    runtime_version: str,
    device: Accelerator | None,
    *,
    cpu: Cpu,
) -> str:
    """Return the digest of everything on which a verdict depends.

    These are content, bindings, golden set, task, runtime version, device and threads. The processor always is:
    the state stays on a card that is moved to another board.
    """
    hardware = (device.kind, device.name, sorted(device.facts.items())) if device else (CPU,)
    facts: tuple[object, ...] = (
        manifest.inputs,
        manifest.outputs,
        manifest.golden,
        manifest.batch,
        manifest.rows,
        manifest.max_batch_rows,
        variant.runtime,
        variant.precision,
        variant.artifacts,
        sorted(variant.bind.items()),
        variant.signature,
        (budget.threads, budget.accelerator, sorted(budget.options.items())),
        runtime_version,
        hardware,
        cpu,
    )
    weighs = manifest.runs or budget.objective == "throughput" or budget.runs != budget.threads
    if budget.accelerator == CPU and weighs:  # else verdicts from before 0092 remain in use
        facts = (*facts, manifest.runs, budget.objective, budget.runs)
    if variant.adapters:
        facts = (*facts, sorted(variant.adapters.items()))
    if manifest.task_options is not None:
        facts = (*facts, manifest.task, sorted(manifest.task_options.items()), manifest.labels)
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def remeasured(old: Verdict, new: Verdict, at_s: float) -> Verdict:
    """Return the verdict to keep after another trial of a variant whose measurement was disturbed.

    The new one must be undisturbed or better. A failure changes nothing: a time-out or a killed process on a busy
    machine is not a property of the variant.
    """
    kept, now = old.measured, new.measured
    if new.passed and kept and now:
        stops_joining = old.joining and old.joining.allowed and not (new.joining and new.joining.allowed)
        if not now.disturbed or (now.run_us < kept.run_us and not stops_joining):
            old, kept = new, now
    return replace(old, measured=replace(kept, again_s=at_s)) if kept else old


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return plain values, as JSON transports them between processes and stores them over restarts."""
    return asdict(verdict)


def read_verdict(document: Mapping[str, Any]) -> Verdict:
    """Read the output of `verdict_document`. Raises KeyError, TypeError or ValueError for anything else."""
    measured, joining = document["measured"], document["joining"]
    if measured is not None:
        measured = Measurement(**{**measured, "conditions": Conditions(**measured.get("conditions", {}))})
    values = {
        "measured": measured,
        "joining": Joining(**joining) if joining is not None else None,
        "remarks": tuple(document["remarks"]),
        "parallel": tuple(Parallel(**each) for each in document.get("parallel", ())),
    }
    return Verdict(**{**document, **values})


def signature_document(signature: Signature) -> dict[str, Any]:
    """Return plain values: name, datatype, shape, layout, axis names and default of every tensor."""

    def plain(spec: TensorSpec) -> tuple[Any, ...]:
        default = spec.default.decode() if isinstance(spec.default, bytes) else spec.default
        return spec.name, spec.datatype.label, spec.shape, spec.layout, spec.axes, default

    return {side: list(map(plain, getattr(signature, side))) for side in ("inputs", "outputs", "optional")}


def read_signature(document: Mapping[str, Any]) -> Signature:
    """Read the output of `signature_document`. Raises as `read_verdict` does."""

    def spec(entry: Sequence[Any]) -> TensorSpec:
        name, label, shape, layout, axes, default = entry
        given = default.encode() if isinstance(default, str) else default
        return TensorSpec(name, DATATYPES[label], tuple(shape), layout, axes=tuple(axes), default=given)

    return Signature(*(tuple(map(spec, document[side])) for side in ("inputs", "outputs", "optional")))
