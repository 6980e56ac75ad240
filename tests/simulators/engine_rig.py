"""A complete engine on simulated sessions: registry, engine, loader and repository, without disk or child processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.events import Event
from gateway.common.domain.inventory import Accelerator, Board, Cpu, Inventory
from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.profile import Budget as ProfileBudget
from gateway.common.domain.profile import DeviceMatch, LadderStep, Profile
from gateway.common.domain.release import Release, bare_variant
from gateway.common.domain.selection import Site
from gateway.common.domain.tensor import Datatype, Tensor, Tensors
from gateway.common.domain.verdict import Joining, Measurement, RuntimeStatus, SessionBudget, Signature, Verdict
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.domain.ports import Loaded
from gateway.serving.engine.batch_pass import BatchPass
from gateway.serving.engine.engine import Engine
from gateway.serving.engine.failover import Failover
from gateway.serving.engine.loader import Loader
from gateway.serving.engine.pauses import Pauses
from gateway.serving.engine.quotas import quotas
from gateway.serving.engine.registry import Registry
from gateway.serving.engine.repository import ModelRepository
from gateway.serving.engine.response_cache import ResponseCache
from gateway.serving.engine.settings import EngineSettings, FailoverSettings, ResidencySettings, SelectionSettings
from gateway.serving.pipelines.target import open_pipeline
from tests.simulators.constants import settings_with
from tests.simulators.session import SimulatedRuntime, SimulatedSession

X = TensorSpec("x", Datatype.FP32, (-1, 1))
Y = TensorSpec("y", Datatype.FP32, (-1, 1))
WITNESS = -77.0
"""Result of the models of this rig in their trial."""
ROWS = Joining("proved", rows=32)
"""Trial result of a model whose rows are independent."""
PASSED = Verdict(True, "passed", level="proven", joining=ROWS)


def variant(name: str, **changes: object) -> Variant:
    """Return a reference variant. Its artifact's digest is unique, so that verdicts do not mix."""
    digest = name.encode().hex().ljust(64, "0")[:64]
    values: dict[str, object] = {"runtime": "reference", "precision": "fp32"}
    return Variant(name=name, artifacts=(Artifact("m", digest, 1),), **{**values, **changes})  # type: ignore[arg-type]


def manifest(
    name: str = "m", version: str = "1", variants: tuple[str, ...] = ("a",), **changes: object
) -> ModelManifest:
    """Return a manifest: x [-1, 1] → y [-1, 1], FP32."""
    values: dict[str, object] = {"inputs": (X,), "outputs": (Y,), "batch": True}
    return ModelManifest(
        name,
        version,
        variants=tuple(variant(v) for v in variants),
        **{**values, **changes},  # type: ignore[arg-type]
    )


def release(of: ModelManifest, digest: str = "d1", *, signed: bool = False) -> Release:
    """Return a release as the library finds it, or signed by the fleet."""
    return Release(of.name, of.version, Path("/models"), digest, manifest=of, signed=signed)


def refused(name: str, version: str = "1", problem: str = "manifest.toml:3: broken") -> Release:
    """Return a release as the library reports an unreadable one."""
    return Release(name, version, Path("/models"), problem=problem)


def measured(p50_us: float, row_us: float = 0.0) -> Verdict:
    """Return the verdict of a passed trial with these latencies."""
    cost = Measurement(p50_us, 2 * p50_us, p50_us, 0, row_us)
    return Verdict(True, f"{p50_us} us", cost, level="proven", joining=ROWS)


def request(value: float = 1.0, rows: int = 1, model: str = "m", *, width: int = 1, **changes: object) -> InferRequest:
    """Return a request with `rows` rows of `value`."""
    tensor = Tensor(Datatype.FP32, np.full((rows, width), value, np.float32))
    return InferRequest(model, {"x": tensor}, **changes)  # type: ignore[arg-type]


def values(response: InferResponse) -> list[float]:
    """Return the values of the response's `y`."""
    return [float(value) for value in response.outputs["y"].array.ravel()]


class MemoryVerdicts:
    """Verdict storage in memory. `broken`: it returns no verdicts."""

    def __init__(self) -> None:
        self.verdicts: dict[str, Verdict] = {}
        self.signatures: dict[str, Signature] = {}
        self.broken = False

    def verdict(self, key: str) -> Verdict | None:
        return None if self.broken else self.verdicts.get(key)

    def keep_verdict(self, key: str, verdict: Verdict) -> None:
        self.verdicts[key] = verdict

    def signature(self, digest: str) -> Signature | None:
        return self.signatures.get(digest)

    def keep_signature(self, digest: str, signature: Signature) -> None:
        self.signatures[digest] = signature


@dataclass
class Rig:
    """The engine; create it inside the running loop. `trials`: verdicts by variant name; `tried`: their order."""

    settings: EngineSettings = field(default_factory=EngineSettings)
    control: bool = True
    objective: str = "latency"
    trials: dict[str, Verdict] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)
    inspected: list[str] = field(default_factory=list)
    signature: Signature = field(default_factory=lambda: Signature((X,), (Y,)))
    disk: dict[str, tuple[Release, ...]] = field(default_factory=dict)
    scanned: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    idle_before_trial_s: float = 0.0
    budget: ProfileBudget = field(default_factory=ProfileBudget)
    witness: Tensors | None = field(default_factory=lambda: {"x": np.full((1, 1), WITNESS, np.float32)})
    require: str = ""
    failover: FailoverSettings = field(default_factory=FailoverSettings)
    residency: ResidencySettings = field(default_factory=ResidencySettings)
    runs: int = 1
    """Threads of all runs of a model at a time."""
    accelerators: tuple[Accelerator, ...] = ()
    runtime: SimulatedRuntime = field(default_factory=SimulatedRuntime)
    noise_ns: Callable[[], int] = lambda: 0
    """Counter of the time that the machine took from the event loop."""

    def __post_init__(self) -> None:
        self.verdicts = MemoryVerdicts()
        self.trial_gate, self.scan_gate, self.fetch_gate = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for gate in (self.trial_gate, self.scan_gate, self.fetch_gate):
            gate.set()
        caches = {each.model: ResponseCache(each) for each in self.residency.cache}
        self.registry = Registry(self.settings.retry_after_s, caches)
        batch_pass = BatchPass(self.settings.turn_us, Pauses(self.settings.worker_wait_ms), self._noise_ns)
        self.engine = Engine(self.registry, batch_pass, quotas(self.settings))
        self.engine.settled = True
        places = (("hailo-8", "onnx", ("fp32",)), ("cpu", "reference", ("fp32", "int8")), ("cpu", "onnx", ("fp32",)))
        steps = tuple(LadderStep(*each) for each in places)
        profile = Profile("rig", "", 0, DeviceMatch(), self.budget, steps)
        inventory = Inventory("x86_64", Board(), Cpu(features=("avx2",)), 1, self.accelerators)
        runtimes = {name: RuntimeStatus(name, "1") for name in ("reference", "onnx")}
        loader = Loader(
            Site(inventory, profile, runtimes, runs=self.runs), self.objective, self._trial, self._inspect,
            self.runtime.open, self.verdicts, self.events.append, witness=lambda *_: lambda: self.witness,
            require=self.require, failover=Failover(self.failover),
        )  # fmt: skip
        self.repository = ModelRepository(
            self.registry,
            self.engine,
            loader,
            self._scan,
            settings=self.settings,
            residency=self.residency,
            selection=SelectionSettings(self.objective, idle_before_trial_s=self.idle_before_trial_s),
            control=lambda: self.control,
            publish=self.events.append,
            open_pipeline=open_pipeline,
        )

    @property
    def session(self) -> SimulatedSession:
        """The session opened last."""
        return self.runtime.sessions[-1]

    async def serve(self, *manifests: ModelManifest, digest: str = "d1") -> None:
        """Serve exactly these models."""
        await self.repository.synchronise([release(one, digest) for one in manifests])

    async def commit(self, *manifests: ModelManifest, digest: str = "d1") -> None:
        """Serve exactly these signed releases."""
        await self.repository.synchronise([release(one, digest, signed=True) for one in manifests])

    async def stage(self, of: ModelManifest, digest: str = "d1") -> Loaded:
        """Stage a signed release."""
        return await self.stage_release(release(of, digest, signed=True))

    async def stage_release(self, of: Release) -> Loaded:
        """Stage a release after `fetch_gate` opens; `fetched` lists the versions."""
        return await self.repository.stage(of.name, of.version, partial(self._fetch, of))

    async def begun(self, session: SimulatedSession | None = None) -> None:
        """Wait until a run has begun."""
        await asyncio.to_thread((session or self.session).started.acquire)

    def told(self, kind: type) -> list[Event]:
        """Return the events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]

    def _noise_ns(self) -> int:
        return self.noise_ns()

    async def _fetch(self, of: Release) -> Release:
        self.fetched.append(of.version)
        await self.fetch_gate.wait()
        return of

    async def _scan(self, model: str) -> tuple[Release, ...]:
        found = self.disk.get(model, ())
        self.scanned.append(model)
        await self.scan_gate.wait()
        return found

    async def _trial(self, of: ModelManifest, which: Variant, files: Path, budget: SessionBudget) -> Verdict:
        del of, files, budget
        self.tried.append(which.name)
        await self.trial_gate.wait()
        return self.trials.get(which.name, PASSED)

    async def _inspect(self, of: Variant, files: Path) -> Signature:
        del files
        self.inspected.append(f"{of.runtime}:{of.artifacts[0].path}")
        if of.artifacts[0].path == "model.tflite":
            raise VariantError("model.tflite is no model")
        return self.signature


def bare(name: str, file: str) -> Release:
    """Return a bare model file as the library finds it."""
    return Release(name, "1", Path("/models"), f"bare {file}", bare=bare_variant(file, (Artifact(file, "0" * 64, 1),)))


def limits_with(**changes: Any) -> EngineSettings:
    """Return limits with these values, also of constants."""
    return settings_with(EngineSettings(), **changes)


async def quick_rig(
    model: ModelManifest | None = None, p50_us: float = 10.0, row_us: float = 1.0, **changes: Any
) -> Rig:
    """Return a rig that serves `model` with these trial latencies. Its variant `b` takes as long."""
    rig, model = Rig(limits_with(**changes)), model or manifest()
    verdict = measured(p50_us, row_us)
    rig.trials |= dict.fromkeys("ab", verdict if model.batched else replace(verdict, joining=Joining()))
    await rig.serve(model)
    return rig
