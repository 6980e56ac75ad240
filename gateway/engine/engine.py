"""The one door: what every frontend knows of the gateway (Inference and Statistics)."""

from __future__ import annotations

import time
from collections.abc import Sequence

from gateway.domain.errors import RequestError
from gateway.domain.infer import InferRequest, InferResponse
from gateway.domain.manifest import ModelManifest
from gateway.domain.statistics import Placement, ServableStatistics
from gateway.engine.registry import Registry


class Engine:
    """Answers requests out of a registry that the repository fills."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._in_flight = 0
        self._last_ns = time.monotonic_ns()
        self.serving = False
        """Set once the model directory was read for the first time, cleared when draining begins."""

    async def infer(self, request: InferRequest) -> InferResponse:
        """Inference.infer: find the version, hand the request to it."""
        servable = self._registry.find(request.model, request.version)
        self._in_flight += 1
        try:
            return await servable.answer(request)
        finally:
            self._in_flight -= 1
            self._last_ns = time.monotonic_ns()

    def describe(self, model: str, version: str = "") -> ModelManifest:
        """Inference.describe."""
        return self._registry.find(model, version).manifest

    def placement(self, model: str, version: str = "") -> Placement:
        """Inference.placement."""
        return self._registry.find(model, version).placement

    def ready(self, model: str = "", version: str = "") -> bool:
        """Inference.ready."""
        if not model:
            return self.serving
        try:
            self._registry.find(model, version)
        except RequestError:
            return False
        return True

    def statistics(self, model: str = "", version: str = "") -> Sequence[ServableStatistics]:
        """Statistics.statistics: `queued` is what waits now."""
        if model and version:
            chosen = [self._registry.find(model, version)]
        else:
            if model:
                self._registry.known(model)
            chosen = [servable for servable in self._registry.servables() if model in {"", servable.manifest.name}]
        for servable in chosen:
            servable.statistics.queued = servable.pending
        return [servable.statistics for servable in chosen]

    def quiet_ns(self, now_ns: int) -> int:
        """How long no request has been under way; 0 while one is."""
        return 0 if self._in_flight else now_ns - self._last_ns
