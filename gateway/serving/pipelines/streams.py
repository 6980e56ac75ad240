"""Request of a pipeline with state, in the line of its stream.

The steps with state of one request run, then those of the next one. They work on copies, which become the stream's
state when all of them are over.
"""

from __future__ import annotations

from typing import Protocol

from gateway.serving.domain.infer import SequenceState
from gateway.serving.engine.streams import Streams, StreamState
from gateway.serving.engine.ticket import Ticket
from gateway.serving.pipelines.passage import PassageOwner, RequestPassage
from gateway.serving.pipelines.plan import Plan
from gateway.serving.pipelines.runs import Turn
from gateway.serving.pipelines.tracking import StreamCounts, Tracks
from gateway.serving.pipelines.windows import StreamValues

STATES = (Tracks, StreamCounts, StreamValues, SequenceState)
"""Classes of the states of streams and sequences, as the disk may have them."""


class StreamOwner(PassageOwner, Protocol):
    """Pipeline with state of a passage."""

    streams: Streams


class StreamPassage(RequestPassage):
    """Request under way whose steps with state wait for its turn."""

    __slots__ = ("_stateful", "_stream", "_streams")

    def __init__(self, target: StreamOwner, plan: Plan, ticket: Ticket) -> None:
        super().__init__(target, plan, ticket)
        self._stateful, self._streams = len(plan.states), target.streams
        for index in plan.states:
            self._needed[index] += 1
        self._ready = [index for index in self._ready if index not in plan.states]
        self._stream: StreamState | None = self._streams.join(self)
        if self._stream.line[0] is self:
            self.grant(self._stream)

    def grant(self, stream: StreamState) -> None:
        """Begin its turn: steps with state run when those that they need are over."""
        arrived_ns = self.ticket.request.arrived_ns or self.ticket.queued_ns
        self.values[self.plan.turn] = Turn(arrived_ns / 1e9, dict(stream.states))
        for index in self.plan.states:
            self._needed[index] -= 1
            if not self._needed[index]:
                self._ready.append(index)

    def _over(self, index: int) -> None:
        super()._over(index)
        if index in self.plan.states:
            self._stateful -= 1
            if not self._stateful and self._stream is not None:
                self._streams.keep(self._stream, self.values[self.plan.turn].states)
                self._leave()

    def cancel(self) -> None:
        super().cancel()
        self._leave()

    def _leave(self) -> None:
        if (stream := self._stream) is not None:
            self._stream = None
            self._streams.leave(stream, self)
