"""Streams of a pipeline with state: what its steps keep, and the order of requests. On the event loop.

A stream's requests have their turn in the order in which they arrived: the steps with state of one request run, then
those of the next one. They work on copies, which become the stream's state when all of them are over. A request that
ends before changes nothing.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Protocol

from gateway.common.domain.pipeline import StreamLimits
from gateway.serving.engine.ticket import Ticket
from gateway.serving.pipelines.passage import PassageOwner, RequestPassage
from gateway.serving.pipelines.plan import Plan
from gateway.serving.pipelines.runs import Turn

STATE_LIMIT_BYTES = 2**28
"""Most bytes of the states of all streams of a pipeline."""
STREAM_BYTES = 1_500
"""Bytes of a stream besides its arrays."""
Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class StreamState:
    """What a pipeline keeps of a stream: states by step, and the requests that have their turn or wait for it."""

    key: Key
    states: dict[str, Any] = field(default_factory=dict)
    size: int = STREAM_BYTES
    used_s: float = 0.0
    line: list[StreamPassage] = field(default_factory=list)


class Streams:
    """Streams by caller and name, within limits: the one that is idle longest is forgotten first."""

    def __init__(self, limits: StreamLimits) -> None:
        self._limits, self._size, self._timed = limits, 0, False
        self._busy, self._idle = dict[Key, StreamState](), OrderedDict[Key, StreamState]()

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def join(self, passage: StreamPassage) -> StreamState:
        """Add a request to the line of its stream."""
        self._forget()
        key = passage.ticket.request.caller, passage.ticket.request.stream
        if (stream := self._busy.get(key) or self._idle.pop(key, None)) is None:
            stream, self._size = StreamState(key), self._size + STREAM_BYTES
        self._busy[key] = stream
        stream.line.append(passage)
        return stream

    def keep(self, stream: StreamState, states: dict[str, Any]) -> None:
        """Keep what the steps of a request made of the states."""
        self._size -= stream.size
        stream.states, stream.size = states, STREAM_BYTES + sum(state.table.nbytes for state in states.values())
        self._size += stream.size

    def leave(self, stream: StreamState, passage: StreamPassage) -> None:
        """Take a request out of the line. If it had its turn, the next one has it."""
        had_turn = stream.line[0] is passage
        stream.line.remove(passage)
        if not stream.line:
            del self._busy[stream.key]
            self._idle[stream.key], stream.used_s = stream, time.monotonic()
            self._forget()
        elif had_turn:
            stream.line[0].grant(stream)
            asyncio.get_running_loop().call_soon(stream.line[0].advance)

    def _forget(self) -> None:
        """Forget idle streams: those over the limits, and those whose time is over. One timer serves all."""
        limits, now_s = self._limits, time.monotonic()
        while self._idle:
            oldest = next(iter(self._idle.values()))
            left_s = oldest.used_s + limits.idle_s - now_s
            if left_s > 0 and len(self) <= limits.keys and self._size <= STATE_LIMIT_BYTES:
                if not self._timed:
                    self._timed = True
                    asyncio.get_running_loop().call_later(left_s, _look, weakref.ref(self))
                return
            del self._idle[oldest.key]
            self._size -= oldest.size

    def look(self) -> None:
        """Forget what is idle too long, at the time of the timer."""
        self._timed = False
        self._forget()


def _look(streams: weakref.ref[Streams]) -> None:
    """Call `look` unless the pipeline is gone."""
    if (there := streams()) is not None:
        there.look()


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
