"""Fake engine for the frontends: Inference, Repository and Statistics on plain values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import Artifact, ModelManifest, TensorSpec, Variant
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.common.domain.tensor import Datatype, Tensor
from gateway.common.timeouts import wait_for
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.domain.ports import IndexEntry, Pending, Sink
from gateway.serving.domain.postprocess import classify
from gateway.serving.domain.sizes import RequestSizes, request_sizes
from gateway.serving.engine.decode_pool import DecodePool
from gateway.serving.engine.settings import EngineSettings

VARIANT = Variant("reference", "reference", "fp32", (Artifact("model.npz", "0" * 64, 1),))


def identity(datatype: Datatype, *, name: str = "") -> ModelManifest:
    """Return a model `identity_<datatype>` that copies input `x` to output `y`."""
    x, y = (TensorSpec(tensor, datatype, (-1, -1)) for tensor in "xy")
    return ModelManifest(name or f"identity_{datatype.label.lower()}", "1", (x,), (y,), (VARIANT,))


def _remaining_s(request: InferRequest) -> float | None:
    return None if request.deadline_ns is None else (request.deadline_ns - time.monotonic_ns()) / 1e9


class _Pending:
    """Return value of `submit`."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> None:
        self._task.cancel()


class SimulatedInference:
    """Fake engine that returns the first input of each request.

    Requests wait while `gate` is cleared; `fault` refuses them. `requests` keeps what arrived; cancellations are
    counted.
    """

    def __init__(self, manifests: Sequence[ModelManifest] = ()) -> None:
        self.manifests = {m.name: m for m in manifests or [identity(datatype) for datatype in Datatype]}
        self.gate = asyncio.Event()
        self.gate.set()
        self.fault: RequestError | None = None
        self.requests: list[InferRequest] = []
        self.cancelled = 0
        self.loaded: list[str] = []
        self.unready: set[str] = set()
        self.degraded = ""
        self.loading: set[str] = set()
        self._moved = asyncio.Event()
        self.decoding = DecodePool(EngineSettings())

    def sizes(self, model: str) -> RequestSizes:
        return request_sizes(
            self.describe(model), EngineSettings().max_batch_rows, EngineSettings().request_slack_bytes
        )

    def check(self, request: InferRequest) -> None:
        self.describe(request.model, request.version)

    async def infer(self, request: InferRequest) -> InferResponse:
        manifest = self.describe(request.model, request.version)
        self.requests.append(request)
        self._moved.set()
        try:
            await wait_for(self.gate.wait(), _remaining_s(request))
        except TimeoutError:
            raise RequestError(Fault.EXPIRED, f"the deadline passed before model '{request.model}' ran") from None
        except asyncio.CancelledError:
            self.cancelled += 1
            self._moved.set()
            raise
        if self.fault is not None:
            raise self.fault
        given = next(iter(request.inputs.values()))
        spec = manifest.outputs[0]
        outputs = {spec.name: Tensor(spec.datatype, given.array)}
        for wanted in request.outputs:
            if wanted.classification:
                classes = classify(given.array, wanted.classification, manifest.labels, batched=manifest.batched)
                outputs[wanted.name] = Tensor(Datatype.BYTES, classes)
        return InferResponse(manifest.name, manifest.version, request.id, outputs, "reference")

    def submit(self, request: InferRequest, sink: Sink, token: Any) -> Pending:
        """Submit a request as the engine does: refuse at once, or answer later, never within this call."""
        self.describe(request.model, request.version)
        if not isinstance(self.fault, RequestError | None):
            raise self.fault  # a defect
        return _Pending(asyncio.ensure_future(self._submitted(request, sink, token)))

    def raw_batch(self, _request: InferRequest) -> None:
        """Return no batch: each request is answered separately."""

    def hold(self) -> None:
        """Do nothing: each request is answered in a task of its own."""

    def release(self) -> None:
        """Do nothing, see `hold`."""

    async def _submitted(self, request: InferRequest, sink: Sink, token: Any) -> None:
        try:
            response = await self.infer(request)
        except RequestError as error:
            sink.refuse(token, error)
        else:
            sink.answer(token, response)
        sink.flush()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds. It is checked whenever a request arrives or is cancelled."""
        while not condition():
            self._moved.clear()
            await self._moved.wait()

    def describe(self, model: str, version: str = "") -> ModelManifest:
        manifest = self.manifests.get(model)
        if manifest is None or version not in {"", manifest.version}:
            raise RequestError(Fault.NOT_FOUND, f"Request for unknown model: '{model}' is not found")
        if model in self.loading:
            problem = f"model '{model}' is loading: its trial runs; try again"
            raise RequestError(Fault.UNAVAILABLE, problem, retry_after_s=1.0, is_loading=True)
        if model in self.unready:
            raise RequestError(Fault.UNAVAILABLE, f"model '{model}' is not ready", retry_after_s=1.0)
        return manifest

    def ready(self, model: str = "", version: str = "") -> bool:
        known = not model or (model in self.manifests and version in {"", self.manifests[model].version})
        return known and model not in self.unready

    def placement(self, model: str, version: str = "") -> Placement:
        self.describe(model, version)
        return Placement("reference", "reference", "fp32", "cpu", "the only one", 8, degraded=self.degraded)

    def index(self) -> Sequence[IndexEntry]:
        return [
            IndexEntry(name, m.version, "UNAVAILABLE" if name in self.unready else "READY")
            for name, m in sorted(self.manifests.items())
        ]

    def versions(self, model: str) -> Sequence[str]:
        return [self.describe(model).version]

    async def load(self, model: str) -> None:
        if self.fault is not None:
            raise self.fault
        self.loaded.append(model)

    async def unload(self, model: str) -> None:
        self.describe(model)
        del self.manifests[model]

    def statistics(self, model: str = "", version: str = "") -> Sequence[ServableStatistics]:
        names = [self.describe(model, version).name] if model else sorted(self.manifests)
        return [ServableStatistics(name, "1", inferences=3, executions=2) for name in names]
