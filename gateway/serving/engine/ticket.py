"""A submitted request, from admission control to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Tensor
from gateway.serving.domain.infer import InferRequest, InferResponse
from gateway.serving.domain.ports import Sink
from gateway.serving.engine.admission import Form
from gateway.serving.engine.quotas import QuotaUse
from gateway.serving.tasks.frame import Frame


class TicketOwner(Protocol):
    """Owner of a waiting ticket."""

    def leave(self, ticket: Ticket) -> None:
        """Stop waiting for this ticket's answer: its caller cancelled it."""


class NoCaller:
    """Sink of runs without a caller, which discards the results."""

    def part(self, token: Any, response: InferResponse) -> None:
        """Implement `Sink.part`."""

    def answer(self, token: Any, response: InferResponse) -> None:
        """Implement `Sink.answer`."""

    def refuse(self, token: Any, error: RequestError) -> None:
        """Implement `Sink.refuse`."""

    def flush(self) -> None:
        """Implement `Sink.flush`."""


NO_CALLER = NoCaller()


@dataclass(slots=True, eq=False)
class Ticket:
    """Implementation of Pending. Used on the event loop, which alone sets `done`: answered, refused or cancelled.

    `frames` are the places of its images in the model's input, one for each row, or none. `repeats`: times that it ran
    again where a run of it had failed.
    """

    request: InferRequest
    form: Form
    inputs: Mapping[str, Tensor]
    sink: Sink
    token: Any
    home: TicketOwner
    queued_ns: int
    account: QuotaUse | None = None
    frames: Sequence[Frame] = ()
    done: bool = False
    timer: asyncio.TimerHandle | None = None
    repeats: int = 0

    def cancel(self) -> None:
        """Implement `Pending.cancel`."""
        if not self.done:
            self.end()
            self.home.leave(self)

    def end(self) -> None:
        """Mark the ticket as done: no answer follows."""
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
        if self.account is not None:
            self.account.in_flight -= 1
