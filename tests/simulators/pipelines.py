"""Pipelines on the engine's rig: their models are functions of arrays, which wait at gates and fail on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec, Variant
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release import Release
from gateway.common.domain.tensor import Array, Datatype, Tensor, Tensors
from gateway.common.domain.text_model import is_generative
from gateway.common.domain.verdict import Joining, SessionBudget
from gateway.serving.domain.infer import InferRequest, InferResponse, RequestedOutput
from gateway.serving.domain.ports import Part
from gateway.serving.engine.settings import ResidencySettings
from gateway.serving.pipelines.target import PipelineTarget
from tests.simulators.engine_rig import Rig, limits_with, manifest, measured, release
from tests.simulators.session import SimulatedRuntime, SimulatedSession

Model = Callable[[Tensors], Tensors]
NAME = "chain"


class FunctionSession(SimulatedSession):
    """Session that computes a function. `rows_run`: the rows of each run, and `given` its inputs."""

    lends = False

    def __init__(self, function: Model) -> None:
        super().__init__(1.0)
        self.function = function
        self.given: list[Tensors] = []

    @property
    def rows_run(self) -> list[int]:
        """Return the rows of each run."""
        return [len(next(iter(inputs.values()))) for inputs in self.given]

    def run_in_parts(self, inputs: Tensors, part: Part) -> Tensors:
        return self.run(inputs)

    def run(self, inputs: Tensors) -> Tensors:
        assert not self.closed, "a closed session was run"
        self.given.append(inputs)
        self.started.release()
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return self.function(inputs)


class FunctionRuntime(SimulatedRuntime):
    """Runtime of functions by model name."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: dict[str, Model] = {}

    def open(self, manifest: ModelManifest, variant: Variant, files: Path, budget: SessionBudget) -> SimulatedSession:
        self.opening.release()
        self.gate.wait()
        session = FunctionSession(self.functions[manifest.name])
        session.in_parts = is_generative(manifest)
        self.sessions.append(session)
        return session


class PipelineRig(Rig):
    """Rig with functions as models, which run on the event loop unless `slow` names them."""

    def __init__(self, slow: tuple[str, ...] = (), residency: ResidencySettings | None = None, **changes: Any) -> None:
        limits, own = limits_with(retry_after_s=0.1, **changes), residency or ResidencySettings()
        super().__init__(limits, witness=None, runtime=FunctionRuntime(), residency=own)
        self.slow, self.manifests, self.pipelines = slow, dict[str, ModelManifest](), dict[str, Release]()
        self.digests = dict[str, str]()

    def model(
        self,
        name: str,
        function: Model,
        inputs: Mapping[str, TensorSpec] | tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        *,
        digest: str = "d1",
        **changes: Any,
    ) -> None:
        """Add a model; `begin` serves it."""
        assert isinstance(self.runtime, FunctionRuntime)
        self.runtime.functions[name] = function
        of = manifest(name, variants=(name,), inputs=tuple(inputs), outputs=outputs, **changes)
        cost = measured(100_000.0 if name in self.slow else 10.0, row_us=1.0)
        self.trials[name] = cost if of.batched else replace(cost, joining=Joining())
        self.manifests[name], self.digests[name] = of, digest

    def pipeline(self, text: str, name: str = NAME, folder: Path = Path("/models"), digest: str = "p1") -> None:
        """Add a pipeline: the document without its name and version."""
        head = f'schema = 1\nname = "{name}"\nversion = "1"\n'
        declared = read_pipeline(head + text, "pipeline.toml")
        self.pipelines[name] = Release(name, "1", folder, digest, pipeline=declared)

    async def begin(self) -> None:
        """Serve what was added."""
        models = [release(of, self.digests[name]) for name, of in self.manifests.items()]
        await self.repository.synchronise([*models, *self.pipelines.values()])

    def target(self, name: str = NAME) -> PipelineTarget:
        """Return the pipeline that serves."""
        target = self.registry.find(name, "")
        assert isinstance(target, PipelineTarget), target
        return target

    def session_of(self, model: str) -> FunctionSession:
        """Return the open session of a model."""
        functions = self.runtime.functions  # type: ignore[attr-defined]
        found = [one for one in self.runtime.sessions if not one.closed and one.function is functions[model]]  # type: ignore[attr-defined]
        assert isinstance(found[-1], FunctionSession)
        return found[-1]

    def reason(self, name: str = NAME) -> str:
        """Return why a pipeline is not served."""
        return next(entry.reason for entry in self.repository.index() if entry.name == name)

    async def ask(self, inputs: Mapping[str, Any], *outputs: str, name: str = NAME, **changes: Any) -> dict[str, Array]:
        """Return the outputs of a request."""
        return arrays(await self.engine.infer(asked(inputs, *outputs, name=name, **changes)))


def asked(inputs: Mapping[str, Any], *outputs: str, name: str = NAME, **changes: Any) -> InferRequest:
    """Return a request for a pipeline with arrays as inputs: FP32 for floats, BYTES for objects."""
    tensors = {key: _tensor(value) for key, value in inputs.items()}
    return InferRequest(name, tensors, outputs=tuple(map(RequestedOutput, outputs)), **changes)


def arrays(response: InferResponse) -> dict[str, Array]:
    """Return the outputs of a response as arrays."""
    return {name: tensor.array for name, tensor in response.outputs.items()}


def _tensor(value: Any) -> Tensor:
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind == "S":
        return Tensor(Datatype.BYTES, array.astype(object))
    if array.dtype.kind == "f":
        return Tensor(Datatype.FP32, array.astype(np.float32))
    return Tensor(next(each for each in Datatype if each.dtype == array.dtype), array)


def spec(name: str, *shape: int, datatype: Datatype = Datatype.FP32, **changes: Any) -> TensorSpec:
    """Return a tensor with rows first."""
    return TensorSpec(name, datatype, (-1, *shape), **changes)


FOUND = (
    spec("boxes", -1, 4),
    spec("scores", -1),
    spec("classes", -1, datatype=Datatype.INT32),
)
"""Results of a detector."""


def images(side: int) -> TensorSpec:
    """Return an input that takes images, as pixels [3, side, side]."""
    preprocess = Preprocess(("png", "jpeg"), resize=(side, side))
    return spec("image", 3, side, side, datatype=Datatype.UINT8, preprocess=preprocess)


PIXELS = images(8)


def detector(
    rig: PipelineRig,
    name: str,
    found: Callable[[Array], list[tuple[Any, float, int]]],
    pixels: TensorSpec = PIXELS,
    **changes: Any,
) -> None:
    """Add a detector: `found` returns box, score and class of what it finds in the pixels of an image."""

    def run(inputs: Tensors) -> Tensors:
        rows = [found(pixels) for pixels in inputs["image"]]
        most = max(map(len, rows), default=0)
        boxes, scores = np.zeros((len(rows), most, 4), np.float32), np.zeros((len(rows), most), np.float32)
        classes = np.full((len(rows), most), -1, np.int32)
        for place, row in enumerate(rows):
            for at, (box, score, index) in enumerate(row):
                boxes[place, at], scores[place, at], classes[place, at] = box, score, index
        return {"boxes": boxes, "scores": scores, "classes": classes}

    answered = tuple(each.name for each in FOUND)
    rig.model(name, run, (pixels,), FOUND, **{"answered": answered, "labels": ("car", "dog"), **changes})
