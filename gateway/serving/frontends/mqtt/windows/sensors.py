"""Windows of one route's sensors, bounded in number. Pure: the clock is passed in."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np

from gateway.serving.frontends.mqtt.windows.gaps import TimedRows, between, resampled, single
from gateway.serving.frontends.mqtt.windows.joining import Joiner
from gateway.serving.frontends.mqtt.windows.ordering import Ordering, new_ordering
from gateway.serving.frontends.mqtt.windows.rings import Complete, Ring, RingState, WindowShape
from gateway.serving.frontends.mqtt.windows.samples import (
    MISSING_LIMIT_ROWS,
    RESAMPLE_LIMIT_ROWS,
    Rows,
    Sample,
    SampleTiming,
    SensorState,
)

SHORT = "sessions_short"
"""Counter of sessions with fewer than `least_rows` rows."""


class SensorWindow:
    """Window of one sensor whose samples have times of their own, or sequence numbers, or come in sessions."""

    def __init__(self, ring: Ring, timing: SampleTiming, counters: Counter[str], *, by_sequence: bool) -> None:
        self._ring, self._timing, self._counters = ring, timing, counters
        self._ordering: Ordering = new_ordering(timing, counters, by_sequence=by_sequence)
        self._joiner = None if timing.join is None else Joiner(timing.join, counters)
        self._previous: Sample | None = None
        """Last sample that passed; those in the ring follow it only if the ring is not empty."""
        self._next_ns = 0

    def put(self, sample: Sample) -> Iterator[Complete]:
        """Add a sample. Yield the windows that it completes, with samples that waited for it."""
        if self._joiner is not None:
            self._joiner.add(sample)
        return self._passed(self._ordering.put(sample))

    def due_ns(self) -> int | None:
        """Return the monotonic time of the next `expire`; None if no sample waits and no session is open."""
        due_ns, ends_ns = self._ordering.due_ns(), self._ends_ns()
        if due_ns is None or ends_ns is None:
            return ends_ns if due_ns is None else due_ns
        return min(due_ns, ends_ns)

    def expire(self, now_ns: int) -> Iterator[Complete]:
        """Yield the windows that are complete without the samples that did not come in time."""
        yield from self._passed(self._ordering.expire(now_ns))
        if (ends_ns := self._ends_ns()) is not None and ends_ns <= now_ns:
            yield from self._end()

    def flush(self) -> Iterator[Complete]:
        """Yield the windows that are complete with all samples that wait, and the session that is open."""
        yield from self._passed(self._ordering.flush())
        if self._timing.session is not None:
            yield from self._end()

    def restart(self) -> None:
        """Forget all samples that are in the window."""
        self._ring.restart()

    def state(self) -> SensorState:
        """Return the content outside the ring."""
        if self._joiner is not None:
            next_ns, waiting = self._joiner.next_ns, self._ordering.waiting()
            return SensorState(self._previous, next_ns, waiting, self._joiner.state())
        return SensorState(self._previous, self._next_ns, self._ordering.waiting())

    def restore(self, state: SensorState) -> None:
        """Continue after `state`, in a new process. Its waiting samples are not part of it: `put` them."""
        self._previous, self._next_ns = state.previous, state.next_ns
        passed = state.previous
        if self._joiner is not None:
            passed = self._joiner.restore(state.joined, state.next_ns)
        if passed is not None:
            self._ordering.resume(passed)

    def resume(self, last_ns: int, now_ns: int) -> None:
        """Go on at `now_ns` after arrivals up to `last_ns`, which were of another clock. Samples begin to wait now."""
        if self._previous is not None:
            self._previous.arrived_ns += now_ns - last_ns
        for sample in self._ordering.waiting():
            sample.arrived_ns = now_ns

    def _passed(self, samples: Iterable[Sample]) -> Iterator[Complete]:
        """Yield the windows that samples complete which passed, in order."""
        return self._enter(samples) if self._joiner is None else self._join(samples, self._joiner)

    def _join(self, samples: Iterable[Sample], joiner: Joiner) -> Iterator[Complete]:
        for sample in samples:
            if sample.restarts:
                yield from self._restart()
            yield from self._enter(joiner.rows(sample))

    def _enter(self, samples: Iterable[Sample]) -> Iterator[Complete]:
        for sample in samples:
            if self._timing.session is not None and self._is_after_silence(sample, self._timing.session.gap_ns):
                yield from self._end()
            batch = self._batch(sample)
            if batch.restarts:
                yield from self._restart()
            self._counters["samples_missing"] += sample.missing
            yield from self._ring.append(batch.rows, batch.times_ns, batch.marks)

    def _batch(self, sample: Sample) -> TimedRows:
        previous, self._previous = None if self._ring.is_empty else self._previous, sample
        batch = between(previous, sample, self._timing)
        if not self._timing.resample:
            return batch
        interval_ns = self._timing.interval_ns
        if previous is None or batch.restarts or sample.time_ns - self._next_ns > RESAMPLE_LIMIT_ROWS * interval_ns:
            self._next_ns = sample.time_ns + interval_ns
            return single(sample, restarts=previous is not None)
        # Interpolation fills gaps itself; the marks say how many rows were made without a sample near them.
        missing = min(int(np.abs(batch.marks).sum()), MISSING_LIMIT_ROWS)
        grid = resampled(previous, sample, self._next_ns, interval_ns, missing)
        self._next_ns += len(grid.rows) * interval_ns
        return grid

    def _restart(self) -> Iterator[Complete]:
        """Begin the window again, or end the session: its samples belong together, whatever follows."""
        if self._timing.session is not None:
            yield from self._end()
        else:
            self._ring.restart()
            self._counters["windows_restarted"] += 1

    # ---- sessions --------------------------------------------------------------------------------------------------
    def _ends_ns(self) -> int | None:
        """Return the monotonic time at which silence ends the session; None if no session is open."""
        session = self._timing.session
        if session is None or self._ring.is_empty:
            return None
        return self._ring.seen_ns + session.gap_ns + self._timing.lateness_ns

    def _is_after_silence(self, sample: Sample, gap_ns: int) -> bool:
        """Return True if another session begins with `sample`: by its time if it has one, else by its arrival."""
        previous = self._previous
        if previous is None or self._ring.is_empty:
            return False
        if self._timing.event_time:
            return sample.time_ns - previous.time_ns > gap_ns
        return sample.arrived_ns - previous.arrived_ns > gap_ns

    def _end(self) -> Iterator[Complete]:
        """Yield the rest of the session, unless it is too short."""
        window, session = self._ring.end(), self._timing.session
        if window is None or session is None:
            return
        if len(window.rows) < session.least_rows:
            self._counters[SHORT] += 1
        else:
            yield window


class Windows:
    """Windows of one route's sensors. What is dropped is counted in `counters`.

    `timing` is None if samples have the time of their arrival and no sequence number, and windows a fixed size; such
    windows begin again after a refused sample if `resets`.
    """

    def __init__(
        self,
        shape: WindowShape,
        max_sensors: int,
        idle_expiry_ns: int,
        counters: Counter[str] | None = None,
        *,
        timing: SampleTiming | None = None,
        by_sequence: bool = False,
        resets: bool = False,
    ) -> None:
        self.shape = shape
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._max_sensors, self._idle_expiry_ns = max_sensors, idle_expiry_ns
        self._timing, self._by_sequence, self._resets = timing, by_sequence, resets
        self.is_timed = timing is not None
        """True if samples are `put` with times or sequence numbers of their own, and not appended."""
        self.lost: dict[str, int] = {}
        """Samples that were refused since the last one, by sensor."""
        self._rings: OrderedDict[str, Ring] = OrderedDict()
        self._timed: dict[str, SensorWindow] = {}
        self._due_ns: dict[str, int] = {}
        """Sensors whose samples wait, or whose session is open. Each is checked by this time, not later than due."""
        self._due_heap: list[tuple[int, str]] = []
        """Heap of these times. Entries that differ from `_due_ns` are ignored."""

    def __len__(self) -> int:
        return len(self._rings)

    @property
    def joins(self) -> bool:
        """Return True if rows are joined by time, so that samples may lack channels."""
        return self._timing is not None and self._timing.join is not None

    def fits(self, rows_bytes: int, channels: int) -> bool:
        """Return True if a window of another process may be one of these."""
        row_bytes = self.shape.size_bytes // self.shape.size_rows
        if channels != self.shape.channels or rows_bytes % row_bytes:
            return False
        is_session = self._timing is not None and self._timing.session is not None
        return rows_bytes == self.shape.size_bytes or (is_session and 0 < rows_bytes < self.shape.size_bytes)

    def append(self, sensor: str, samples: Rows, *, now_ns: int, wall_ns: int) -> Iterator[Complete]:
        """Yield the windows that samples [n, channels] complete, which came now. They are added as windows are taken.

        A sensor without samples for longer than the idle expiry starts again. If there are too many sensors, the least
        recently seen one is dropped.
        """
        ring, lost = self._ring(sensor, now_ns, wall_ns), self.lost.pop(sensor, 0)
        if not lost:
            return ring.append(samples, wall_ns)
        self.counters["samples_missing"] += lost
        if self._resets:
            self._restart(sensor, ring)
        marks = np.zeros(len(samples), np.int32)
        marks[:1] = lost
        return ring.append(samples, wall_ns, marks)

    def put(self, sensor: str, samples: Iterable[Sample], *, now_ns: int, wall_ns: int) -> Iterator[Complete]:
        """Yield the windows that samples with times of their own complete. They are added as windows are taken."""
        window, lost = self._window(sensor, self._ring(sensor, now_ns, wall_ns)), self.lost.pop(sensor, 0)
        for sample in samples:
            sample.missing, lost = sample.missing + lost, 0
            yield from window.put(sample)
        due_ns, known_ns = window.due_ns(), self._due_ns.get(sensor)
        if due_ns is None or known_ns is None or due_ns < known_ns:
            self._schedule(sensor, due_ns)

    def lose(self, sensor: str, count: int = 1) -> None:
        """Note that samples of a sensor were refused. The next one carries the gap; sequence numbers show it anyway."""
        if count and not self._by_sequence and sensor in self._rings and not self._rings[sensor].is_empty:
            self.lost[sensor] = self.lost.get(sensor, 0) + count

    def due_ns(self) -> int | None:
        """Return the monotonic time of the next `expire`; None if no sample waits and no session is open."""
        while self._due_heap and self._due_ns.get(self._due_heap[0][1]) != self._due_heap[0][0]:
            heapq.heappop(self._due_heap)
        return self._due_heap[0][0] if self._due_heap else None

    def expire(self, now_ns: int | None = None) -> Iterator[tuple[str, Complete]]:
        """Yield the windows, by sensor, that are complete without samples that did not come in time.

        `now_ns` None: without all samples that did not come, and with the sessions that are open.
        """
        while (due_ns := self.due_ns()) is not None and (now_ns is None or due_ns <= now_ns):
            _, sensor = heapq.heappop(self._due_heap)
            del self._due_ns[sensor]
            window = self._timed[sensor]
            for complete in window.flush() if now_ns is None else window.expire(now_ns):
                yield sensor, complete
            self._schedule(sensor, window.due_ns())

    def states(self) -> Iterator[tuple[str, Ring, SensorState]]:
        """Yield each sensor with a copy of the content of its window."""
        for sensor, ring in self._rings.items():
            timed = self._timed.get(sensor)
            yield sensor, ring.copy(), timed.state() if timed else SensorState()

    def restore(self, sensor: str, seen_ns: int, ring: RingState, state: SensorState) -> None:
        """Continue with the window of a sensor, in a new process. Raises ValueError if it is of another shape."""
        restored = Ring(self.shape)
        restored.restore(ring)
        self._make_room()
        restored.seen_ns, restored.is_kept = seen_ns, True
        self._rings[sensor] = restored
        if self._timing is not None:
            window = self._window(sensor, restored)
            window.restore(state)
            self._schedule(sensor, window.due_ns())

    def resume(self, last_ns: int, now_ns: int) -> None:
        """Go on at `now_ns` with times of arrival up to `last_ns`, which were of another clock.

        The time between does not count: what sensors sent meanwhile is at the broker. Samples that wait for earlier
        ones begin to wait now.
        """
        for ring in self._rings.values():
            ring.seen_ns += now_ns - last_ns
        for sensor, window in self._timed.items():
            window.resume(last_ns, now_ns)
            self._schedule(sensor, window.due_ns())

    def ring_of(self, sensor: str) -> Ring | None:
        """Return the ring of a sensor; None if it has none, or was dropped."""
        return self._rings.get(sensor)

    def _window(self, sensor: str, ring: Ring) -> SensorWindow:
        if self._timing is None:
            raise ValueError("these windows take samples by their arrival")
        if sensor not in self._timed:
            self._timed[sensor] = SensorWindow(ring, self._timing, self.counters, by_sequence=self._by_sequence)
        return self._timed[sensor]

    def _ring(self, sensor: str, now_ns: int, wall_ns: int) -> Ring:
        ring = self._rings.get(sensor)
        if ring is None:
            self._make_room()
            ring = self._rings[sensor] = Ring(self.shape, wall_ns)
        self._rings.move_to_end(sensor)
        if ring.seen_ns and now_ns - ring.seen_ns > self._idle_expiry_ns:
            self._restart(sensor, ring)
        ring.seen_ns = now_ns
        return ring

    def _schedule(self, sensor: str, due_ns: int | None) -> None:
        """Note when a sensor is to be checked (None: it need not be)."""
        if due_ns is None:
            self._due_ns.pop(sensor, None)
        else:
            self._due_ns[sensor] = due_ns
            heapq.heappush(self._due_heap, (due_ns, sensor))

    def _make_room(self) -> None:
        if len(self._rings) >= self._max_sensors:
            dropped, _ = self._rings.popitem(last=False)
            self._timed.pop(dropped, None)
            self.lost.pop(dropped, None)
            self._due_ns.pop(dropped, None)
            self.counters["sensors_evicted"] += 1

    def _restart(self, sensor: str, ring: Ring) -> None:
        self.counters["windows_restarted"] += 1
        if sensor in self._timed:
            self._timed[sensor].restart()
        else:
            ring.restart()
