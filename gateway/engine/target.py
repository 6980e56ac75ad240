"""Target of requests for a name: one version of a model, or several that share its requests."""

from __future__ import annotations

from typing import Any, Protocol

from gateway.domain.infer import InferRequest
from gateway.domain.manifest import ModelManifest
from gateway.domain.ports import Pending, Sink
from gateway.domain.statistics import Placement, ServableStatistics
from gateway.engine.quotas import QuotaUse
from gateway.engine.raw_batches import OpenRawBatch


class ModelTarget(Protocol):
    """A `Servable`, or a `Split` of several. Manifest, placement and statistics are those that callers see."""

    @property
    def manifest(self) -> ModelManifest:
        """Return the inputs and outputs."""

    @property
    def placement(self) -> Placement:
        """Return the variant, the accelerator and the reason for them."""

    @property
    def statistics(self) -> ServableStatistics:
        """Return the counters of requests that are refused before a version is chosen."""

    def check(self, request: InferRequest) -> None:
        """Implement `Inference.check`. Raises RequestError."""

    def raw_batch(self, request: InferRequest) -> OpenRawBatch | None:
        """Return the batch that small requests like this one join as bytes, or None if each must be submitted."""

    def submit(self, request: InferRequest, sink: Sink, token: Any, account: QuotaUse | None = None) -> Pending:
        """Implement `Submission.submit`. Raises RequestError."""
