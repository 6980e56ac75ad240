"""Closed version of a model: it answers metadata, and its requests wait until it is open again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.release import Release
from gateway.common.domain.retry import SECOND_NS, longest_pause_s
from gateway.common.domain.statistics import Placement, ServableStatistics
from gateway.common.domain.tensor import Tensor
from gateway.serving.domain.infer import InferRequest
from gateway.serving.domain.ports import Sink
from gateway.serving.domain.sizes import request_sizes
from gateway.serving.engine.admission import Admission, Form
from gateway.serving.engine.answers import AnswerDelivery
from gateway.serving.engine.context import EngineContext
from gateway.serving.engine.cost import Cost
from gateway.serving.engine.queue import Queue
from gateway.serving.engine.quotas import QuotaUse
from gateway.serving.engine.run import Ran
from gateway.serving.engine.settings import ResidencySettings
from gateway.serving.engine.target import ModelTarget
from gateway.serving.engine.ticket import Ticket
from gateway.serving.tasks.frame import Frame


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdParts:
    """Release of a closed version, and what callers see of it.

    `declared` is the manifest as it was tried. `streams`: states of its sequences, which go on when it is open again.
    """

    release: Release
    manifest: ModelManifest
    declared: ModelManifest
    placement: Placement
    statistics: ServableStatistics
    used_ns: int = 0
    streams: object = None


class ColdVersion:
    """Target that stands for a version without a session. `wake` begins to open it; `hand_over` passes its requests on.

    Requests are admitted, wait in a queue with the bounds and the policy of the model's, expire and leave as in that.
    After a failure to open it, requests are refused with the reason until the next attempt is due.
    """

    def __init__(
        self,
        parts: ColdParts,
        context: EngineContext,
        settings: ResidencySettings,
        wake: Callable[[ColdVersion], None],
        serving: Callable[[str, str], ModelTarget | None],
    ) -> None:
        manifest, limits = parts.manifest, context.settings
        self.release, self.manifest, self.declared = parts.release, manifest, parts.declared
        self.placement, self.statistics, self.used_ns = parts.placement, parts.statistics, parts.used_ns
        self.streams = parts.streams  # the engine's own reference to them is weak
        self.contents, self.comparing = (parts.release.digest,), context.comparing
        rows = manifest.rows_limit(limits.max_batch_rows)
        self.sizes = request_sizes(manifest, rows, limits.request_slack_bytes)
        self._admission = Admission(manifest, Cost(), max_batch_rows=rows, forms=limits.forms)
        self.check = self._admission.check
        self._settings, self._wake, self._serving = settings, wake, serving
        self._answers = AnswerDelivery(
            manifest, parts.placement.variant, self.statistics, context.publish, limits.retry_after_s
        )
        self._queue = Queue(limits.queue_of(manifest.name))
        self._failures = self._retry_ns = 0
        self._problem, self._closed = "", False
        self.is_scheduled = False
        """Whether it is to be open although no request waits."""

    @property
    def fits(self) -> bool:
        """Return True: it needs no other model."""
        return True

    @property
    def refusal(self) -> str:
        """Implement `RequestTarget.refusal`: why it could not be opened, until the next attempt is due."""
        return self._problem if time.monotonic_ns() < self._retry_ns else ""

    @property
    def ready(self) -> bool:
        """Implement `RequestTarget.ready`."""
        return not self.refusal

    @property
    def busy(self) -> bool:
        """Return True if a request waits."""
        return self._queue.length > 0

    @property
    def is_wanted(self) -> bool:
        """Return True if there is a reason to open it."""
        return not self._closed and (self.busy or self.is_scheduled)

    def degrade(self, reason: str) -> None:
        """Show why a variant or accelerator is out ("": none is)."""
        self.placement = replace(self.placement, degraded=reason)

    def counted(self, weight: int) -> ServableStatistics:
        """Implement `ModelTarget.counted`."""
        counted = self.statistics
        counted.queued, counted.busy, counted.weight = self._queue.length, self.busy, weight
        return counted

    def rows_together(self, _row_bytes: int) -> int:
        """Implement `RequestTarget.rows_together`."""
        return 1

    def raw_batch(self, _request: InferRequest) -> None:
        """Return None: each request waits by itself."""

    def ask_beside(
        self,
        _inputs: Mapping[str, Tensor],
        _form: Form | None,
        _ended: Callable[[Ran | None], None],
        _frames: Sequence[Frame] = (),
    ) -> bool:
        """Return False: a comparison is no reason to open it."""
        return False

    def close_batches(self) -> None:
        """Implement `ModelTarget.close_batches`: there are none."""

    def submit(
        self,
        request: InferRequest,
        sink: Sink,
        token: Any,
        account: QuotaUse | None = None,
        frames: Sequence[Frame] = (),
    ) -> Ticket:
        """Implement `Submission.submit`: let the request wait until the version is open. Raises RequestError."""
        now_ns = time.monotonic_ns()
        try:
            completed = self._admission.complete(request)
            form = self._admission.form(completed)
            if request.deadline_ns is not None and request.deadline_ns <= now_ns:
                self.statistics.drop("expired")
                raise self._answers.expired()
            if self._closed:
                raise self._answers.unloaded()
            if now_ns < self._retry_ns:
                raise self._unopened((self._retry_ns - now_ns) / SECOND_NS)
            ticket = Ticket(request, form, request.inputs, sink, token, self, now_ns, account, frames)
            displaced = self._queue.offer(ticket)
            if displaced is ticket:
                raise self._answers.full(self._queue.length)
        except RequestError:
            self.statistics.fail.add(time.monotonic_ns() - now_ns)
            raise
        loop = asyncio.get_running_loop()
        if displaced is not None:
            loop.call_soon(self._answers.displace, displaced, ticket, self._queue.policy)
        ends_ns = now_ns + int(self._settings.wake_s * SECOND_NS)
        ticket.timer = loop.call_at(min(request.deadline_ns or ends_ns, ends_ns) / 1e9, self._expire, ticket)
        self._wake(self)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Implement `TicketOwner.leave`: free the place of a cancelled request."""
        self.statistics.abandoned(time.monotonic_ns() - ticket.queued_ns)
        self._queue.remove(ticket)

    def failed(self, problem: str) -> None:
        """Refuse what waits: it could not be opened. It is tried again for a request after a pause."""
        self.is_scheduled = False
        self._failures += 1
        pause_s = longest_pause_s(self._failures, self._settings.retry_s, self._settings.retry_limit_s)
        self._retry_ns, self._problem = time.monotonic_ns() + int(pause_s * SECOND_NS), problem
        self._answers.refuse(self._queue.clear(), self._unopened(pause_s), "unopened")

    def hand_over(self, target: ModelTarget) -> None:
        """Pass the requests that wait to what answers now, in the order of the queue."""
        self._closed = True
        now_ns, waited = time.monotonic_ns(), list[int]()
        while self._queue.length:
            plan = self._queue.take(now_ns, 1)
            self._answers.refuse(plan.expired, self._answers.expired(), "expired")
            for ticket in plan.batch:
                waited.append(ticket.queued_ns)
                _pass_on(ticket, target)
        if waited:
            self.statistics.wakes.add(waited, now_ns)

    async def close(self, _drain_s: float) -> None:
        """Implement `ModelTarget.close`: what waits goes to the version's successor, or is refused. Nothing is open."""
        self._closed = True
        target = self._serving(self.manifest.name, self.manifest.version)
        if target is not None and target is not self:
            self.hand_over(target)
        self._answers.refuse(self._queue.clear(), self._answers.unloaded())

    def _unopened(self, retry_after_s: float) -> RequestError:
        what = f"model '{self.manifest.name}' was closed to save memory and cannot be opened again: {self._problem}"
        words = f"{what}; it is tried again in {retry_after_s:.0f} s (EG-316)"
        return RequestError(Fault.UNAVAILABLE, words, retry_after_s=retry_after_s, is_loading=True)

    def _expire(self, ticket: Ticket) -> None:
        self._queue.remove(ticket)
        model, deadline_ns = self.manifest.name, ticket.request.deadline_ns
        if deadline_ns is not None and deadline_ns <= ticket.queued_ns + int(self._settings.wake_s * SECOND_NS):
            words = f"the request's time was over before model '{model}', which was closed, was open again"
            self._answers.refuse((ticket,), RequestError(Fault.EXPIRED, words), "expired")
            return
        words = f"model '{model}' was closed to save memory, and is not open again after {self._settings.wake_s:g} s"
        late = RequestError(
            Fault.UNAVAILABLE,
            f"{words}; ask again later (EG-317)",
            retry_after_s=self._settings.retry_s,
            is_loading=True,
        )
        self._answers.refuse((ticket,), late, "unopened")


class _PassedOn:
    """Owner of a request that another target answers under a ticket of its own."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    def __getattr__(self, name: str) -> Any:
        """Return what the target that answers has: it may be replaced again."""
        return getattr(self._ticket.home, name)

    def leave(self, _ticket: Ticket) -> None:
        """Implement `TicketOwner.leave`."""
        self._ticket.cancel()


def _pass_on(ticket: Ticket, target: ModelTarget) -> None:
    """Submit a request that waited, with its place in the caller's account. Its refusal is its answer."""
    if ticket.timer is not None:
        ticket.timer.cancel()
    account, ticket.account = ticket.account, None
    try:
        passed = target.submit(ticket.request, ticket.sink, ticket.token, account, ticket.frames)
    except RequestError as error:
        ticket.account = account
        ticket.end()
        ticket.sink.refuse(ticket.token, error)
        ticket.sink.flush()
    else:
        passed.queued_ns, ticket.home = ticket.queued_ns, _PassedOn(passed)
