"""Bounded queue of one model version: order, joining and eviction. Decisions on values: no clock, no lock, no thread.

Order: priority first (1 before 2), then callers in turn, then each caller's requests as they came. A full queue evicts
by its policy; a caller that got less, waiting requests included, gets a place from one that got more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from gateway.serving.engine.settings import QueueSettings
from gateway.serving.engine.ticket import Ticket

CALM_REQUESTS = 1000
"""Requests served since the queue was full last, after which its callers' shares are forgotten."""
EXAMINED = 32
"""Callers that an eviction compares: those whose turn comes last. It bounds the cost of a refusal (14 µs)."""


CREDIT = 8.0
"""Requests below the mean that a caller may save up."""
CALLERS_LIMIT = 4096
"""Callers counted; one more makes the record begin again."""


@dataclass(slots=True)
class RunPlan:
    """Next step: run the `rows` rows of `batch` together, and refuse `expired` because their deadline passed."""

    batch: list[Ticket]
    rows: int
    expired: list[Ticket]


@dataclass(slots=True)
class Level:
    """One priority: each caller's line, and the order of the callers' turns. No line is empty."""

    lines: dict[str, deque[Ticket]] = field(default_factory=dict)
    order: deque[str] = field(default_factory=deque)

    def drop_line(self, caller: str) -> None:
        """Forget a caller whose line became empty."""
        del self.lines[caller]
        self.order.remove(caller)


class ServiceRecord:
    """Requests served to each caller while a queue is congested. A caller enters it with the mean of the others.

    Periodic callers, such as cameras of one frame rate, arrive in the same order again and again: at a full queue
    without a memory, the same ones are refused each time. With it a caller that got less than the mean goes before one
    that got more.
    """

    __slots__ = ("_by_caller", "_total")

    def __init__(self) -> None:
        self._by_caller: dict[str, float] = {}
        self._total = 0.0

    def enter(self, caller: str) -> None:
        """Count `caller` from now on."""
        if caller in self._by_caller:
            return
        if len(self._by_caller) >= CALLERS_LIMIT:
            self._by_caller.clear()
            self._total = 0.0
        served = self._mean()
        self._by_caller[caller] = served
        self._total += served

    def add(self, caller: str) -> None:
        """Count one request that is served."""
        self.enter(caller)
        self._by_caller[caller] += 1
        self._total += 1

    def of(self, caller: str) -> float:
        """Return what was served to `caller`, at least CREDIT less than the mean."""
        mean = self._mean()
        return max(self._by_caller.get(caller, mean), mean - CREDIT)

    def _mean(self) -> float:
        return self._total / len(self._by_caller) if self._by_caller else 0.0


class Queue:
    """Waiting tickets. Used by one thread at a time: by the event loop's, or under its worker's lock.

    `length` tickets wait here; `reserved` places are held for tickets that are being prepared.
    """

    __slots__ = ("_calm", "_levels", "_priority", "_requests", "_service", "length", "policy", "reserved")

    def __init__(self, settings: QueueSettings) -> None:
        self.policy, self._requests, self._priority = settings.policy, settings.requests, settings.priority
        self._levels: dict[int, Level] = {}
        self._service: ServiceRecord | None = None
        self._calm = 0
        self.length = self.reserved = 0

    @property
    def full(self) -> bool:
        """Return True if the next ticket evicts one or is refused."""
        return self.length + self.reserved >= self._requests

    def __iter__(self) -> Iterator[Ticket]:
        """Iterate over all waiting tickets, in no particular order."""
        return (ticket for level in self._levels.values() for line in level.lines.values() for ticket in line)

    def offer(self, ticket: Ticket) -> Ticket | None:
        """Enqueue `ticket`. Return the evicted ticket: None, another one, or `ticket` itself if the queue is full."""
        if self.policy == "latest" and (older := self._older(ticket)) is not None:
            return self._replace(older, ticket)
        evicted = None
        if self.length + self.reserved >= self._requests:
            evicted = self._oldest(ticket) if self.policy == "oldest" else self._surplus(ticket)
            if evicted is None:
                return ticket
            self.remove(evicted)
        self._append(ticket)
        return evicted

    def head(self) -> Ticket | None:
        """Return the ticket that goes next, or None."""
        if not self.length:
            return None
        level = self._levels[min(self._levels)]
        return level.lines[level.order[0]][0]

    def take(self, now_ns: int, batch_rows: int) -> RunPlan:
        """Take the next run: the first ticket in time, and those behind it that differ from it in rows only.

        The run has at most `batch_rows` rows, unless its first ticket alone has more. The first ticket that cannot join
        ends the run.
        """
        plan = RunPlan([], 0, [])
        while self._levels:
            priority = min(self._levels)
            if not self._take_level(self._levels[priority], plan, now_ns, batch_rows):
                break
            del self._levels[priority]
        self.length -= len(plan.batch) + len(plan.expired)
        if self._service is not None:
            self._count(self._service, plan)
        return plan

    def remove(self, ticket: Ticket) -> bool:
        """Free the place of a ticket. Return False if it does not wait here."""
        priority, caller = self._urgency(ticket), ticket.request.caller
        level = self._levels.get(priority)
        line = level.lines.get(caller) if level else None
        if level is None or line is None or ticket not in line:
            return False
        line.remove(ticket)
        self.length -= 1
        if not line:
            level.drop_line(caller)
            if not level.lines:
                del self._levels[priority]
        return True

    def clear(self) -> list[Ticket]:
        """Remove and return all waiting tickets."""
        waiting = list(self)
        self._levels.clear()
        self.length = 0
        return waiting

    def _append(self, ticket: Ticket) -> None:
        request = ticket.request
        priority = request.priority or self._priority
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = Level()
        caller = request.caller
        line = level.lines.get(caller)
        if line is None:
            line = level.lines[caller] = deque()
            level.order.append(caller)
        line.append(ticket)
        self.length += 1

    @staticmethod
    def _take_level(level: Level, plan: RunPlan, now_ns: int, batch_rows: int) -> bool:
        """Move tickets of one level to the plan. Return True if the level is empty."""
        lines, order, batch, rows = level.lines, level.order, plan.batch, plan.rows
        while order:
            line = lines[order[0]]
            ticket = line[0]
            deadline_ns, form = ticket.request.deadline_ns, ticket.form
            if deadline_ns is not None and deadline_ns <= now_ns:
                plan.expired.append(ticket)
            elif batch and (rows + form.rows > batch_rows or not form.joins(batch[0].form)):
                break
            else:
                batch.append(ticket)
                rows += form.rows
            line.popleft()
            if line:
                order.rotate(-1)
            else:
                del lines[order.popleft()]
        plan.rows = rows
        return not order

    def _urgency(self, ticket: Ticket) -> int:
        return ticket.request.priority or self._priority

    def _older(self, ticket: Ticket) -> Ticket | None:
        """Return the waiting ticket of the same caller and stream, or None."""
        caller, stream = ticket.request.caller, ticket.request.stream
        lines = (level.lines.get(caller, ()) for level in self._levels.values())
        return next((waiting for line in lines for waiting in line if waiting.request.stream == stream), None)

    def _replace(self, older: Ticket, newer: Ticket) -> Ticket:
        """Put the newer ticket in the older one's place: a stream that sends continuously still gets its turn."""
        if self._urgency(older) != self._urgency(newer):
            self.remove(older)
            self._append(newer)
        else:
            line = self._levels[self._urgency(older)].lines[older.request.caller]
            line[line.index(older)] = newer
        return older

    def _count(self, service: ServiceRecord, plan: RunPlan) -> None:
        """Count what is served. The congested period ends after CALM_REQUESTS without an arrival at a full queue."""
        for ticket in plan.batch:
            service.add(ticket.request.caller)
        self._calm += len(plan.batch)
        if self._calm >= CALM_REQUESTS:
            self._service = None

    def _oldest(self, ticket: Ticket) -> Ticket | None:
        """Return the oldest ticket of the caller with most tickets at the least urgent level.

        Return None if there is none, or all are more urgent than `ticket`. A flood drops its own tickets.
        """
        level = self._least_urgent(ticket)
        return max(level.lines.values(), key=len)[0] if level else None

    def _surplus(self, ticket: Ticket) -> Ticket | None:
        """Return the newest ticket of the caller that got most, or None.

        The caller must have got more than the caller of `ticket` would then have got. This is Longest Queue Drop (Suter
        et al., "Design Considerations for Supporting TCP with Per-flow Queueing", 1998), with served requests counted
        as well.
        """
        level, caller = self._least_urgent(ticket), ticket.request.caller
        if level is None:
            return None
        if self._service is None:
            self._service = ServiceRecord()
        self._calm = 0
        service, lines = self._service, level.lines
        service.enter(caller)
        own = service.of(caller) + sum(len(each.lines.get(caller, ())) for each in self._levels.values())
        got, other = max(
            (service.of(each) + len(lines[each]), each) for each in islice(reversed(level.order), EXAMINED)
        )
        if got <= own + 1:
            return None
        service.enter(other)
        return lines[other][-1]

    def _least_urgent(self, ticket: Ticket) -> Level | None:
        """Return the least urgent level, or None if there is none or it is more urgent than `ticket`."""
        if not self._levels:
            return None
        priority = max(self._levels)
        return self._levels[priority] if priority >= self._urgency(ticket) else None
