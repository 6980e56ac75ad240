"""Order in which connections are served if there is more work than one pass of the event loop has time for.

Fair queueing by virtual time, twice: among callers, and among the connections of a caller. A member's `work_ns` grows
by the work that is done for it; the member with the least is served next. A queue's clock is the `work_ns` of the
member that it served last. A member that had no work catches up with the clock, less a credit. It goes before those
that always have work, and saves up no more than that credit (start-time fair queueing: Goyal, Vin and Cheng, 1996).
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

CREDIT_NS = 2_000_000
"""Work by which a member that was idle goes before the others."""
KEPT_CALLERS = 4096
"""Callers whose work is remembered; above it, those without a connection are forgotten."""


class QueueMember(Protocol):
    """Object that takes turns."""

    work_ns: int


class ScheduledConnection(QueueMember, Protocol):
    """A connection. `serve` returns the work that it did, in nanoseconds; `behind` is True if it has more to do."""

    caller: CallerQueue
    queued: bool

    @property
    def behind(self) -> bool: ...
    def serve(self) -> int: ...


M = TypeVar("M", bound=QueueMember)


class FairQueue(Generic[M]):
    """Queue of one level."""

    __slots__ = ("_clock_ns", "_count", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, M]] = []
        self._clock_ns = self._count = 0

    def add(self, member: M) -> None:
        """Queue a member that is not in the queue."""
        member.work_ns = max(member.work_ns, self._clock_ns - CREDIT_NS)
        self._count += 1
        heappush(self.heap, (member.work_ns, self._count, member))

    def take(self) -> M:
        """Remove and return the member that had the least work."""
        work_ns, _, member = heappop(self.heap)
        self._clock_ns = max(self._clock_ns, work_ns)
        return member


class CallerQueue:
    """One caller with its connections that wait for their turn. `connections` counts those that are open."""

    __slots__ = ("connections", "queue", "queued", "work_ns")

    def __init__(self) -> None:
        self.queue: FairQueue[ScheduledConnection] = FairQueue()
        self.work_ns = self.connections = 0
        self.queued = False


class ConnectionSchedule:
    """All connections that wait for their turn."""

    def __init__(self) -> None:
        self._queue: FairQueue[CallerQueue] = FairQueue()
        self.waiting = self._queue.heap
        """Empty if no connection waits: each read needs that truth value, and gets it without a call."""
        self._callers: dict[str, CallerQueue] = {}

    def caller(self, key: str) -> CallerQueue:
        """Return the caller of that key, with one connection more."""
        caller = self._callers.get(key)
        if caller is None:
            if len(self._callers) >= KEPT_CALLERS:
                self._callers = {key: each for key, each in self._callers.items() if each.connections}
            caller = self._callers[key] = CallerQueue()
        caller.connections += 1
        return caller

    def add(self, turn: ScheduledConnection) -> None:
        """Let a connection wait; one that already waits keeps its place."""
        if turn.queued:
            return
        turn.queued = True
        turn.caller.queue.add(turn)
        self._add(turn.caller)

    def serve(self) -> int:
        """Serve the next connection once; it waits again if it is behind. Return the work in nanoseconds."""
        caller = self._queue.take()
        turn = caller.queue.take()
        turn.queued = caller.queued = False
        work_ns = turn.serve()
        turn.work_ns += work_ns
        caller.work_ns += work_ns
        if turn.behind:
            self.add(turn)
        elif caller.queue.heap:
            self._add(caller)
        return work_ns

    def _add(self, caller: CallerQueue) -> None:
        if not caller.queued:
            caller.queued = True
            self._queue.add(caller)
