"""Entry point of the engine: the interface of all frontends to the gateway (Inference and Statistics)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from gateway.common.domain.errors import RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.pipeline import ASKS
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.common.domain.text_model import is_generative
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.domain.lifecycle import READY, server_ready
from gateway.serving.domain.ports import Pending, RawBatch, Sink
from gateway.serving.domain.sizes import RequestSizes, widest
from gateway.serving.engine.batch_pass import BatchPass
from gateway.serving.engine.decode_pool import DecodePool
from gateway.serving.engine.parts import UntakenParts
from gateway.serving.engine.quotas import Quotas
from gateway.serving.engine.registry import Registry
from gateway.serving.engine.settings import EngineSettings


class Engine:
    """Request processing with a registry that the repository fills. Implements Inference, Submission, Statistics."""

    def __init__(
        self,
        registry: Registry,
        batch_pass: BatchPass,
        quotas: Quotas | None = None,
        decoding: DecodePool | None = None,
    ) -> None:
        self._registry, self._quotas = registry, quotas
        self.decoding = decoding or DecodePool(EngineSettings())
        self.batch_pass, self.hold, self.release = batch_pass, batch_pass.hold, batch_pass.release
        self._futures = Futures()
        self.ready_when, self.settled, self.draining = READY[0], False, False
        """Readiness: `server_ready` has the rule; never while it drains."""

    def submit(self, request: InferRequest, sink: Sink, token: Any) -> Pending:
        """Implement `Submission.submit`: find the version and pass the request to it."""
        servable = self._registry.find(request.model, request.version)
        if self._quotas is None:
            return servable.submit(request, sink, token)
        try:
            writes = is_generative(servable.manifest) or ASKS in servable.manifest.parameters
            account = self._quotas.enter(request.caller, time.monotonic_ns(), writes=writes)
        except RequestError:
            servable.statistics.drop("quota")
            servable.statistics.fail.add(0)
            raise
        try:
            return servable.submit(request, sink, token, account)
        except Exception:
            if account is not None:
                account.in_flight -= 1
            raise

    def raw_batch(self, request: InferRequest) -> RawBatch | None:
        """Implement `Submission.raw_batch`. Quotas count each request."""
        if self._quotas is not None:
            return None
        try:
            return self._registry.find(request.model, request.version).raw_batch(request)
        except RequestError:  # unloaded since
            return None

    async def infer(self, request: InferRequest) -> InferResponse:
        """Implement `Inference.infer`: submit the request and await its answer."""
        future: asyncio.Future[InferResponse] = asyncio.get_running_loop().create_future()
        pending = self.submit(request, self._futures, future)
        try:
            return await future
        except asyncio.CancelledError:
            pending.cancel()
            raise

    async def infer_in_parts(self, request: InferRequest) -> AsyncGenerator[tuple[InferResponse, bool], None]:
        """Implement `Inference.infer_in_parts`."""
        request.in_parts, parts = True, UntakenParts()
        pending = parts.pending = self.submit(request, parts, None)
        try:
            is_last = False
            while not is_last:
                response, is_last = await parts.take()
                yield response, is_last
        finally:
            pending.cancel()
            parts.pending = None

    def describe(self, model: str, version: str = "") -> ModelManifest:
        """Implement `Inference.describe`."""
        return self._registry.find(model, version).manifest

    def sizes(self, model: str) -> RequestSizes:
        """Implement `Inference.sizes`."""
        loaded = self._registry.known(model).loaded
        if not loaded:
            self._registry.find(model)  # raises with the reason
        return widest(servable.sizes for servable in loaded.values())

    def check(self, request: InferRequest) -> None:
        """Implement `Inference.check`."""
        servable = self._registry.find(request.model, request.version)
        try:
            servable.check(request)
        except RequestError:
            servable.statistics.fail.add(0)
            raise

    def placement(self, model: str, version: str = "") -> Placement:
        """Implement `Inference.placement`."""
        return self._registry.find(model, version).placement

    def ready(self, model: str = "", version: str = "") -> bool:
        """Implement `Inference.ready`."""
        if not model:
            records = self._registry.records()
            serving = any(one.serving is not None and not one.serving.target.refusal for one in records)
            listed = bool(self._registry.listed())
            ready = server_ready(self.ready_when, settled=self.settled, listed=listed, serving=serving)
            return ready and not self.draining
        try:
            return self._registry.find(model, version).ready
        except RequestError:
            return False

    def statistics(self, model: str = "", version: str = "") -> Sequence[ServableStatistics]:
        """Implement `Statistics.statistics`: `queued` is the number that waits now; staged versions are included."""
        if model and version:
            self._registry.find(model, version)
        elif model:
            self._registry.known(model)
        chosen = []
        for servable, weight in self._registry.loaded():
            manifest = servable.manifest
            if model in {"", manifest.name} and version in {"", manifest.version}:
                chosen.append(servable.counted(weight))
        return chosen

    def quiet_ns(self, now_ns: int) -> int:
        """Return the time since the last request was under way; 0 while one is."""
        servables = list(self._registry.targets())
        if any(servable.busy for servable in servables):
            return 0
        return now_ns - max((servable.used_ns for servable in servables), default=0)


class Futures:
    """Sink for callers that await their answer; the token is a future."""

    def part(self, token: asyncio.Future[InferResponse], response: InferResponse) -> None:
        """Implement `Sink.part`: these callers take none."""

    def answer(self, token: asyncio.Future[InferResponse], response: InferResponse) -> None:
        """Implement `Sink.answer`."""
        if not token.done():
            token.set_result(response)

    def refuse(self, token: asyncio.Future[InferResponse], error: RequestError) -> None:
        """Implement `Sink.refuse`."""
        if not token.done():
            token.set_exception(error)

    def flush(self) -> None:
        """Implement `Sink.flush`: the event loop wakes each waiter by itself."""
