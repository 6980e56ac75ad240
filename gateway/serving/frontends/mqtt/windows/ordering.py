"""Order of one sensor's samples: by sequence number, or by time. Repetitions and late samples are counted and dropped.

By sequence, a sample whose predecessor is here passes at once; samples after a gap wait for the missing ones, at most
`lateness_ns` after their arrival. By time, nothing tells whether a sample is missing, so each waits until a sample that
is `lateness_ns` younger has come, or `lateness_ns` after its arrival. Samples with neither pass as they arrive. Pure:
the clock is passed in.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from typing import Protocol

from gateway.serving.frontends.mqtt.windows.samples import Sample, SampleTiming

REMEMBERED = 64
"""Sequence numbers per sensor that are remembered, to recognise repetitions: more than brokers have in flight."""
RESTART_DISTANCE = 1_000
"""Distance back of a sequence number without a time from which on the sensor counts from the start again."""
DUPLICATES, LATE = "samples_duplicate", "samples_late"


class Ordering(Protocol):
    """Samples of one sensor that wait for earlier ones."""

    def put(self, sample: Sample) -> list[Sample]:
        """Add a sample. Return those that may pass now, in order."""

    def due_ns(self) -> int | None:
        """Return the monotonic time at which a waiting sample passes without its predecessors; None if none waits."""

    def expire(self, now_ns: int) -> list[Sample]:
        """Return the samples that waited long enough, in order."""

    def flush(self) -> list[Sample]:
        """Return all samples that wait, in order."""

    def waiting(self) -> tuple[Sample, ...]:
        """Return the samples that wait, in the order of their arrival."""

    def resume(self, last: Sample) -> None:
        """Continue after `last`, in a new process."""


def new_ordering(timing: SampleTiming, counters: Counter[str], *, by_sequence: bool) -> Ordering:
    """Return the ordering of a sensor."""
    if by_sequence:
        return SequenceOrdering(timing, counters)
    return TimeOrdering(timing, counters) if timing.event_time else ArrivalOrdering()


class ArrivalOrdering:
    """Order of arrival: no sample waits."""

    def put(self, sample: Sample) -> list[Sample]:
        """Implement Ordering."""
        return [sample]

    def due_ns(self) -> int | None:
        """Implement Ordering."""
        return None

    def expire(self, now_ns: int) -> list[Sample]:
        """Implement Ordering."""
        return []

    def flush(self) -> list[Sample]:
        """Implement Ordering."""
        return []

    def waiting(self) -> tuple[Sample, ...]:
        """Implement Ordering."""
        return ()

    def resume(self, last: Sample) -> None:
        """Implement Ordering."""


class SequenceOrdering:
    """Order by sequence number, which may begin again at `modulus`."""

    def __init__(self, timing: SampleTiming, counters: Counter[str]) -> None:
        self._timing, self._counters = timing, counters
        self._last: int | None = None
        """Number of the last sample that passed, counted on beyond `modulus`."""
        self._last_ns = 0
        self._waiting: dict[int, Sample] = {}
        self._passed: OrderedDict[int, bytes] = OrderedDict()

    def put(self, sample: Sample) -> list[Sample]:
        """Implement Ordering."""
        number, modulus = sample.sequence or 0, self._timing.modulus
        if modulus and self._last is not None:  # counted on beyond it: the nearest one to the last (RFC 1982)
            ahead = (number - self._last) % modulus
            number = self._last + (ahead if ahead < modulus // 2 else ahead - modulus)
        if self._last is None:
            return self._pass(number, sample)
        if number in self._waiting:
            self._counters[DUPLICATES] += 1
            return []
        if number <= self._last:
            return self._earlier(number, sample)
        self._waiting[number] = sample
        ready = self._consecutive()
        if self._waiting and (len(self._waiting) > self._timing.pending_limit_rows or not self._timing.lateness_ns):
            ready += self._give_up(min(self._waiting))
        return ready

    def due_ns(self) -> int | None:
        """Implement Ordering."""
        first = min((sample.arrived_ns for sample in self._waiting.values()), default=None)
        return None if first is None else first + self._timing.lateness_ns

    def expire(self, now_ns: int) -> list[Sample]:
        """Implement Ordering."""
        ready: list[Sample] = []
        while (due_ns := self.due_ns()) is not None and due_ns <= now_ns:
            ready += self._give_up(min(self._waiting))
        return ready

    def flush(self) -> list[Sample]:
        """Implement Ordering."""
        ready: list[Sample] = []
        for number in sorted(self._waiting):
            if number in self._waiting:
                ready += self._give_up(number)
        return ready

    def waiting(self) -> tuple[Sample, ...]:
        """Implement Ordering."""
        return tuple(self._waiting.values())

    def resume(self, last: Sample) -> None:
        """Implement Ordering."""
        self._pass(last.sequence or 0, last)

    def _earlier(self, number: int, sample: Sample) -> list[Sample]:
        """Handle a number that has passed: a repetition, a late sample, or a sensor that counts from its start."""
        if self._passed.get(number) == sample.row.tobytes():
            self._counters[DUPLICATES] += 1
            return []
        if self._timing.event_time:
            begins_again = sample.time_ns > self._last_ns or sample.time_ns < self._last_ns - self._timing.restart_ns
        else:
            begins_again = sample.sequence in {0, 1} or (self._last or 0) - number > RESTART_DISTANCE
        if not begins_again:
            self._counters[LATE] += 1
            return []
        ready = self.flush()
        self._passed.clear()
        sample.restarts = True
        return ready + self._pass(sample.sequence or 0, sample)

    def _consecutive(self) -> list[Sample]:
        ready: list[Sample] = []
        while self._last is not None and (following := self._waiting.pop(self._last + 1, None)) is not None:
            ready += self._pass(self._last + 1, following)
        return ready

    def _give_up(self, number: int) -> list[Sample]:
        """Pass the first sample that waits, which is `number`, and those that follow it, without the missing ones."""
        sample, last = self._waiting.pop(number), self._last if self._last is not None else number - 1
        sample.missing = number - last - 1
        return self._pass(number, sample) + self._consecutive()

    def _pass(self, number: int, sample: Sample) -> list[Sample]:
        self._last, self._last_ns = number, sample.time_ns
        self._passed[number] = sample.row.tobytes()
        if len(self._passed) > REMEMBERED:
            self._passed.popitem(last=False)
        return [sample]


class TimeOrdering:
    """Order by the time of the samples."""

    def __init__(self, timing: SampleTiming, counters: Counter[str]) -> None:
        self._timing, self._counters = timing, counters
        self._waiting: list[tuple[int, int, Sample]] = []
        """Heap of samples by time, then by their number in the order of arrival."""
        self._arrived: OrderedDict[int, Sample] = OrderedDict()
        """The same samples by that number."""
        self._count = 0
        self._newest_ns = self._last_ns = -(2**63)

    def put(self, sample: Sample) -> list[Sample]:
        """Implement Ordering."""
        if sample.time_ns < self._last_ns - self._timing.restart_ns:
            ready = self.flush()
            sample.restarts = True
            self._newest_ns = self._last_ns = sample.time_ns
            return [*ready, sample]
        if sample.time_ns < self._last_ns:
            self._counters[LATE] += 1
            return []
        self._count += 1
        heapq.heappush(self._waiting, (sample.time_ns, self._count, sample))
        self._arrived[self._count] = sample
        self._newest_ns = max(self._newest_ns, sample.time_ns)
        ready = self._until(self._newest_ns - self._timing.lateness_ns)
        while len(self._waiting) > self._timing.pending_limit_rows:
            ready.append(self._first())
        return ready

    def due_ns(self) -> int | None:
        """Implement Ordering."""
        first = next(iter(self._arrived.values()), None)
        return None if first is None else first.arrived_ns + self._timing.lateness_ns

    def expire(self, now_ns: int) -> list[Sample]:
        """Implement Ordering."""
        limit_ns = now_ns - self._timing.lateness_ns
        due = [time_ns for time_ns, _, sample in self._waiting if sample.arrived_ns <= limit_ns]
        return self._until(max(due)) if due else []

    def flush(self) -> list[Sample]:
        """Implement Ordering."""
        return self._until(self._newest_ns)

    def waiting(self) -> tuple[Sample, ...]:
        """Implement Ordering."""
        return tuple(self._arrived.values())

    def resume(self, last: Sample) -> None:
        """Implement Ordering."""
        self._newest_ns = self._last_ns = last.time_ns

    def _until(self, time_ns: int) -> list[Sample]:
        ready: list[Sample] = []
        while self._waiting and self._waiting[0][0] <= time_ns:
            ready.append(self._first())
        return ready

    def _first(self) -> Sample:
        self._last_ns, number, sample = heapq.heappop(self._waiting)
        del self._arrived[number]
        return sample
