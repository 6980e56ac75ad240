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
STREAM_BYTES, STEP_BYTES = 1_500, 600
"""Bytes of a stream, and of the state of each of its steps, besides arrays."""
Key = tuple[str, str]


@dataclass(slots=True, eq=False)
class StreamState:
    """State of a stream: the states of its steps by name, and the requests that have their turn or wait for it."""

    key: Key
    states: dict[str, Any] = field(default_factory=dict)
    size: int = STREAM_BYTES
    used_s: float = 0.0
    line: list[StreamPassage] = field(default_factory=list)


class Streams:
    """Streams by caller and name, within limits.

    Beyond them the one that is idle longest is forgotten: of the caller that takes the room, else of all.
    """

    def __init__(self, limits: StreamLimits) -> None:
        self._limits, self._size, self._timed = limits, 0, False
        self._busy, self._idle = dict[Key, StreamState](), OrderedDict[Key, StreamState]()
        self._idle_of = dict[str, OrderedDict[Key, None]]()

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def join(self, passage: StreamPassage) -> StreamState:
        """Add a request to the line of its stream."""
        key = passage.ticket.request.caller, passage.ticket.request.stream
        self._forget_idle()
        if (stream := self._busy.get(key)) is None and (stream := self._take(key)) is None:
            stream, self._size = StreamState(key), self._size + STREAM_BYTES
        self._busy[key] = stream
        stream.line.append(passage)
        self._make_room(stream)
        return stream

    def waiting(self, caller: str, name: str) -> int:
        """Return how many requests of a stream have their turn or wait for it."""
        return len(stream.line) if (stream := self._busy.get((caller, name))) else 0

    def keep(self, stream: StreamState, states: dict[str, Any]) -> None:
        """Keep what the steps of a request made of the states."""
        self._size -= stream.size
        stream.states = states
        stream.size = STREAM_BYTES + sum(STEP_BYTES + state.nbytes for state in states.values())
        self._size += stream.size
        self._make_room(stream)

    def leave(self, stream: StreamState, passage: StreamPassage) -> None:
        """Take a request out of the line. If it had its turn, the next one has it."""
        had_turn = stream.line[0] is passage
        stream.line.remove(passage)
        if not stream.line:
            key, stream.used_s = stream.key, time.monotonic()
            self._idle[key] = self._busy.pop(key)
            self._idle_of.setdefault(key[0], OrderedDict())[key] = None
            self._make_room(stream)
            self._forget_idle()
        elif had_turn:
            stream.line[0].grant(stream)
            asyncio.get_running_loop().call_soon(stream.line[0].advance)

    def _take(self, key: Key) -> StreamState | None:
        """Take an idle stream out; None if there is none of that key."""
        if (stream := self._idle.pop(key, None)) is not None:
            own = self._idle_of[key[0]]
            del own[key]
            if not own:
                del self._idle_of[key[0]]
        return stream

    def _make_room(self, stream: StreamState) -> None:
        """Forget idle streams beyond the limits, others of its caller first: who makes many forgets none of others."""
        while self._idle and (len(self) > self._limits.keys or self._size > STATE_LIMIT_BYTES):
            oldest = next(iter(self._idle_of.get(stream.key[0]) or self._idle))
            if oldest == stream.key:
                oldest = next(iter(self._idle))
            self._size -= self._idle[oldest].size
            self._take(oldest)

    def _forget_idle(self) -> None:
        """Forget streams whose time is over. One timer serves all."""
        while self._idle:
            oldest = next(iter(self._idle.values()))
            left_s = oldest.used_s + self._limits.idle_s - time.monotonic()
            if left_s > 0:
                if not self._timed:
                    self._timed = True
                    asyncio.get_running_loop().call_later(left_s, _look, weakref.ref(self))
                return
            self._take(oldest.key)
            self._size -= oldest.size

    def look(self) -> None:
        """Forget what is idle too long, at the time of the timer."""
        self._timed = False
        self._forget_idle()


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
