"""States of streams and sequences, and the order of their requests. On the event loop.

The requests of a stream have their turn in the order in which they arrived. What a request makes of the states becomes
the stream's when its turn ends well. A request that ends before changes nothing.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import StreamLimits
from gateway.common.domain.statistics import ServableStatistics
from gateway.serving.domain.infer import InferRequest
from gateway.serving.engine.settings import EngineSettings, QueueSettings
from gateway.serving.engine.ticket import Ticket

STATE_LIMIT_BYTES = 2**28
"""Most bytes of the states of all streams of a pipeline or model."""
STREAM_BYTES, STEP_BYTES = 1_500, 600
"""Bytes of a stream, and of the state of each of its steps, besides arrays."""
Key = tuple[str, str]


def state_bytes(states: Mapping[str, Any]) -> int:
    """Return the bytes that a stream with these states takes."""
    return STREAM_BYTES + sum(STEP_BYTES + int(state.nbytes) for state in states.values())


class InLine(Protocol):
    """Request in the line of its stream."""

    ticket: Ticket

    def grant(self, stream: StreamState) -> None:
        """Begin its turn."""

    def advance(self) -> None:
        """Go on after that, later."""


P = TypeVar("P")


@dataclass(slots=True, eq=False)
class StreamState:
    """State of a stream: the states of steps by name, and the requests that have their turn or wait for it."""

    key: Key
    states: dict[str, Any] = field(default_factory=dict)
    size: int = STREAM_BYTES
    used_s: float = 0.0
    line: list[InLine] = field(default_factory=list)


class Streams:
    """Streams by caller and name, within limits.

    Beyond them the one that is idle longest is forgotten: of the caller that takes the room, else of all. `idle`: those
    to begin with, the one that is idle longest first.
    """

    def __init__(self, limits: StreamLimits, idle: Iterable[StreamState] = ()) -> None:
        self.limits, self._size, self._timed = limits, 0, False
        self._busy, self._idle = dict[Key, StreamState](), OrderedDict[Key, StreamState]()
        self._idle_of = dict[str, OrderedDict[Key, None]]()
        self.changed: Callable[[], None] | None = None
        """Callback for the first change of a state after `newest`."""
        self.is_changed = False
        for stream in idle:
            self._size += stream.size
            self._rest(stream)

    def __len__(self) -> int:
        return len(self._busy) + len(self._idle)

    def join(self, passage: InLine) -> StreamState:
        """Add a request to the line of its stream."""
        key = passage.ticket.request.caller, passage.ticket.request.stream
        self._forget_idle()
        if (stream := self._busy.get(key)) is None and (stream := self._take(key)) is None:
            stream, self._size = StreamState(key), self._size + STREAM_BYTES
        self._busy[key] = stream
        stream.line.append(passage)
        return stream

    def waiting(self, caller: str, name: str) -> int:
        """Return how many requests of a stream have their turn or wait for it."""
        return len(stream.line) if (stream := self._busy.get((caller, name))) else 0

    def keep(self, stream: StreamState, states: dict[str, Any]) -> None:
        """Keep what the steps of a request made of the states. Raises RequestError if there is no room for it."""
        size = state_bytes(states)
        grown = size - stream.size
        self._size += grown
        if states:
            self._make_room(stream)
        if grown > 0 and self._size > STATE_LIMIT_BYTES:  # all others are under way
            self._size -= grown
            fault = Fault.TOO_LARGE if size > STATE_LIMIT_BYTES else Fault.OVERLOADED
            words = f"its state of {size} bytes does not fit into the {STATE_LIMIT_BYTES} that all streams have"
            raise RequestError(fault, words)
        stream.states, stream.size = states, size
        if self.changed is not None and not self.is_changed:
            self.is_changed = True
            self.changed()

    def newest(self) -> list[StreamState]:
        """Return all streams with states, the one that was used last first."""
        self.is_changed = False
        return [*(each for each in self._busy.values() if each.states), *reversed(self._idle.values())]

    def leave(self, stream: StreamState, passage: InLine) -> None:
        """Take a request out of the line. If it had its turn, the next one has it."""
        had_turn = stream.line[0] is passage
        stream.line = [each for each in stream.line if each is not passage]
        if not stream.line:
            key, stream.used_s = stream.key, time.monotonic()
            del self._busy[key]
            if not stream.states:  # none began, or it ended
                self._size -= stream.size
                return
            self._rest(stream)
            self._make_room(stream)
            self._forget_idle()
        elif had_turn:
            stream.line[0].grant(stream)
            asyncio.get_running_loop().call_soon(stream.line[0].advance)

    def _rest(self, stream: StreamState) -> None:
        self._idle[stream.key] = stream
        self._idle_of.setdefault(stream.key[0], OrderedDict())[stream.key] = None

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
        while self._idle and (len(self) > self.limits.keys or self._size > STATE_LIMIT_BYTES):
            oldest = next(iter(self._idle_of.get(stream.key[0]) or self._idle))
            if oldest == stream.key:
                oldest = next(iter(self._idle))
            self._size -= self._idle[oldest].size
            self._take(oldest)

    def _forget_idle(self) -> None:
        """Forget streams whose time is over. One timer serves all."""
        while self._idle:
            oldest = next(iter(self._idle.values()))
            left_s = oldest.used_s + self.limits.idle_s - time.monotonic()
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


class RequestRoom(Generic[P]):
    """Requests under way of a target, in its order, within the limit of its queue. Callers share the room."""

    def __init__(self, what: str, queue: QueueSettings, settings: EngineSettings) -> None:
        self._what, self._queue, self._retry_after_s = what, queue, settings.retry_after_s
        self._passages, self._callers = dict[Ticket, P](), Counter[str]()
        self.none = asyncio.Event()
        self.none.set()

    def __len__(self) -> int:
        return len(self._passages)

    def passages(self) -> list[P]:
        """Return the requests, the oldest one first."""
        return list(self._passages.values())

    def add(self, ticket: Ticket, passage: P) -> None:
        """Count a request."""
        self._passages[ticket] = passage
        self._callers[ticket.request.caller] += 1
        self.none.clear()

    def remove(self, ticket: Ticket) -> P | None:
        """Free the place of a request. Return it, None if it has none any more."""
        if (passage := self._passages.pop(ticket, None)) is not None:
            self._callers[ticket.request.caller] -= 1
            if not self._callers[ticket.request.caller]:
                del self._callers[ticket.request.caller]
        if not self._passages:
            self.none.set()
        return passage

    def make_room(
        self,
        request: InferRequest,
        streams: Streams,
        counted: ServableStatistics,
        displace: Callable[[P, RequestError], None],
        lingering: int = 0,
    ) -> None:
        """Make room for a request: if there are too many, the newest one of a caller that has more is displaced, later.

        A more urgent request keeps its place. Raises RequestError OVERLOADED if the newcomer gets none. `lingering`:
        places that are taken by something else.
        """
        words = f"{self._what} has as many requests under way as it may"
        if streams.waiting(request.caller, request.stream) >= max(1, self._queue.requests // 2):
            # one frame that hangs leaves room for the streams of its caller
            words = f"{self._what} has as many requests of this sequence_id under way as it may"
        elif len(self._passages) + lingering < self._queue.requests:
            return
        else:
            other, most = max(self._callers.items(), key=itemgetter(1), default=("", 0))
            urgency = request.priority or self._queue.priority
            newest = (
                ticket
                for ticket in reversed(self._passages)
                if ticket.request.caller == other and (ticket.request.priority or self._queue.priority) >= urgency
            )
            is_fewer = most > self._callers[request.caller] + 1
            if is_fewer and (ticket := next(newest, None)) and (passage := self.remove(ticket)) is not None:
                error = self._full(f"{words}, and another caller has fewer")
                asyncio.get_running_loop().call_soon(displace, passage, error)
                return
        counted.drop("queue_full")
        raise self._full(words)

    def _full(self, words: str) -> RequestError:
        return RequestError(Fault.OVERLOADED, f"{words}; try again later", retry_after_s=self._retry_after_s)
