"""Targets of requests: what answers to a name, and what the record of a model version holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.common.domain.tensor import Tensor
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.ports import Pending, Sink
from gateway.serving.domain.sizes import RequestSizes
from gateway.serving.engine.admission import Form
from gateway.serving.engine.comparing import Comparing
from gateway.serving.engine.quotas import QuotaUse
from gateway.serving.engine.raw_batches import OpenRawBatch
from gateway.serving.engine.run import Ran
from gateway.serving.engine.ticket import Ticket
from gateway.serving.tasks.frame import Frame


class RequestTarget(Protocol):
    """Target of a name: a `ModelTarget`, or a `Split` of several.

    Manifest, placement and statistics are those that callers see.
    """

    @property
    def manifest(self) -> ModelManifest:
        """Return the inputs and outputs."""

    @property
    def placement(self) -> Placement:
        """Return the variant, the accelerator and the reason for them."""

    @property
    def statistics(self) -> ServableStatistics:
        """Return the counters of requests that are refused before a version is chosen."""

    @property
    def contents(self) -> tuple[str, ...]:
        """Return the digests of the releases that answer, with those of what they run; "" where one is absent."""

    @property
    def refusal(self) -> str:
        """Return why it refuses all requests with the models that serve now, or ""."""

    @property
    def ready(self) -> bool:
        """Return False if requests fail now: it refuses them, or a model that it needs does."""

    def check(self, request: InferRequest) -> None:
        """Implement `Inference.check`. Raises RequestError."""

    def rows_together(self, row_bytes: int) -> int:
        """Return how many rows of that size a request should have that is one of several made of one."""

    def raw_batch(self, request: InferRequest) -> OpenRawBatch | None:
        """Return the batch that small requests like this one join as bytes, or None if each must be submitted."""

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        account: QuotaUse | None = None,
        frames: Sequence[Frame] = (),
    ) -> Pending:
        """Implement `Submission.submit`. `frames`: places of images that its sender prepared. Raises RequestError."""


class ModelTarget(RequestTarget, Protocol):
    """One version of a model, as registry, staging and repository hold it; a `Servable` is one."""

    @property
    def declared(self) -> ModelManifest:
        """Return the manifest with the variants that were tried; without variants, nothing is tried."""

    @property
    def sizes(self) -> RequestSizes:
        """Return the sizes of its requests."""

    @property
    def comparing(self) -> Comparing:
        """Return the thread that compares its answers as a shadow."""

    @property
    def busy(self) -> bool:
        """Return True if a request is under way."""

    @property
    def fits(self) -> bool:
        """Return False for a pipeline that must be opened again, for the models that serve now."""

    @property
    def used_ns(self) -> int:
        """Return the end of the last run (monotonic)."""

    def counted(self, weight: int) -> ServableStatistics:
        """Return the statistics as of now, with this weight."""

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        account: QuotaUse | None = None,
        frames: Sequence[Frame] = (),
    ) -> Ticket:
        """Implement `Submission.submit`. Raises RequestError."""

    def ask_beside(
        self,
        inputs: Mapping[str, Tensor],
        form: Form | None,
        ended: Callable[[Ran | None], None],
        frames: Sequence[Frame] = (),
    ) -> bool:
        """Run inputs without a caller, as `Servable.ask_beside` does; return False if busy or closed."""

    def close_batches(self) -> None:
        """Submit again the requests that collect as bytes: another target may answer them now."""

    async def close(self, drain_s: float) -> None:
        """Finish the requests under way, for `drain_s` at most, then free everything."""
