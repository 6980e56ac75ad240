"""Windows of one route's sensors, bounded in number. Pure: the clock is passed in."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np

from gateway.frontends.mqtt.windows.gaps import TimedRows, between, resampled, single
from gateway.frontends.mqtt.windows.ordering import Ordering, new_ordering
from gateway.frontends.mqtt.windows.rings import Complete, Ring, RingState, WindowShape
from gateway.frontends.mqtt.windows.samples import Rows, Sample, SensorState
from gateway.frontends.mqtt.windows.timing import (
    MISSING_LIMIT_ROWS,
    RESAMPLE_LIMIT_ROWS,
    SampleTiming,
)


class SensorWindow:
    """Window of one sensor whose samples have times of their own, or sequence numbers."""

    def __init__(self, ring: Ring, timing: SampleTiming, counters: Counter[str], *, by_sequence: bool) -> None:
        self._ring, self._timing, self._counters = ring, timing, counters
        self._ordering: Ordering = new_ordering(timing, counters, by_sequence=by_sequence)
        self._previous: Sample | None = None
        self._next_ns = 0

    def put(self, sample: Sample) -> Iterator[Complete]:
        """Add a sample. Yield the windows that it completes, with samples that waited for it."""
        return self._enter(self._ordering.put(sample))

    def due_ns(self) -> int | None:
        """Return the monotonic time at which a sample no longer waits for earlier ones; None if none waits."""
        return self._ordering.due_ns()

    def expire(self, now_ns: int) -> Iterator[Complete]:
        """Yield the windows that are complete without the samples that did not come in time."""
        return self._enter(self._ordering.expire(now_ns))

    def flush(self) -> Iterator[Complete]:
        """Yield the windows that are complete with all samples that wait."""
        return self._enter(self._ordering.flush())

    def restart(self) -> None:
        """Forget all samples that are in the window."""
        self._ring.restart()
        self._previous = None

    def state(self) -> SensorState:
        """Return the content outside the ring."""
        return SensorState(self._previous, self._next_ns, self._ordering.waiting())

    def restore(self, state: SensorState) -> None:
        """Continue after `state`, in a new process. Its waiting samples are not part of it: `put` them."""
        self._previous, self._next_ns = state.previous, state.next_ns
        if state.previous is not None:
            self._ordering.resume(state.previous)

    def rewait(self, now_ns: int) -> None:
        """Let the samples that wait do so from `now_ns`."""
        for sample in self._ordering.waiting():
            sample.arrived_ns = now_ns

    def _enter(self, samples: Iterable[Sample]) -> Iterator[Complete]:
        for sample in samples:
            batch = self._batch(sample)
            if batch.restarts:
                self._ring.restart()
                self._counters["windows_restarted"] += 1
            self._counters["samples_missing"] += sample.missing
            yield from self._ring.append(batch.rows, batch.times_ns, batch.marks)

    def _batch(self, sample: Sample) -> TimedRows:
        previous, self._previous = self._previous, sample
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


class Windows:
    """Windows of one route's sensors. What is dropped is counted in `counters`.

    `timing` is None if samples have the time of their arrival and no sequence number.
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
    ) -> None:
        self.shape = shape
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._max_sensors, self._idle_expiry_ns = max_sensors, idle_expiry_ns
        self._timing, self._by_sequence = timing, by_sequence
        self._rings: OrderedDict[str, Ring] = OrderedDict()
        self._timed: dict[str, SensorWindow] = {}
        self._due_ns: dict[str, int] = {}
        """Sensors whose samples wait for earlier ones. Each is checked by this time, which is not later than due."""
        self._due_heap: list[tuple[int, str]] = []
        """Heap of these times. Entries that differ from `_due_ns` are ignored."""

    def __len__(self) -> int:
        return len(self._rings)

    @property
    def is_timed(self) -> bool:
        """Return True if samples are `put` with times or sequence numbers of their own, and not appended."""
        return self._timing is not None

    def append(self, sensor: str, samples: Rows, *, now_ns: int, wall_ns: int) -> Iterator[Complete]:
        """Yield the windows that samples [n, channels] complete, which came now. They are added as windows are taken.

        A sensor without samples for longer than the idle expiry starts again. If there are too many sensors, the least
        recently seen one is dropped.
        """
        return self._ring(sensor, now_ns, wall_ns).append(samples, wall_ns)

    def put(self, sensor: str, samples: Iterable[Sample], *, now_ns: int, wall_ns: int) -> Iterator[Complete]:
        """Yield the windows that samples with times of their own complete. They are added as windows are taken."""
        window = self._window(sensor, self._ring(sensor, now_ns, wall_ns))
        for sample in samples:
            yield from window.put(sample)
        if (window.due_ns() is not None) != (sensor in self._due_ns):
            self._schedule(sensor)

    def due_ns(self) -> int | None:
        """Return the monotonic time of the next `expire`; None if no sample waits for earlier ones."""
        while self._due_heap and self._due_ns.get(self._due_heap[0][1]) != self._due_heap[0][0]:
            heapq.heappop(self._due_heap)
        return self._due_heap[0][0] if self._due_heap else None

    def expire(self, now_ns: int | None = None) -> Iterator[tuple[str, Complete]]:
        """Yield the windows, by sensor, that are complete without samples that did not come in time.

        `now_ns` None: without all samples that did not come.
        """
        while (due_ns := self.due_ns()) is not None and (now_ns is None or due_ns <= now_ns):
            _, sensor = heapq.heappop(self._due_heap)
            del self._due_ns[sensor]
            window = self._timed[sensor]
            for complete in window.flush() if now_ns is None else window.expire(now_ns):
                yield sensor, complete
            self._schedule(sensor)

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
        restored.seen_ns = seen_ns
        self._rings[sensor] = restored
        if self._timing is not None:
            self._window(sensor, restored).restore(state)

    def resume(self, last_ns: int, now_ns: int) -> None:
        """Go on at `now_ns` with times of arrival up to `last_ns`, which were of another clock.

        The time between does not count: what sensors sent meanwhile is at the broker. Samples that wait for earlier
        ones begin to wait now.
        """
        for ring in self._rings.values():
            ring.seen_ns += now_ns - last_ns
        for sensor in tuple(self._due_ns):
            self._timed[sensor].rewait(now_ns)
            self._schedule(sensor)

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

    def _schedule(self, sensor: str) -> None:
        """Note when the samples of a sensor no longer wait, if any do."""
        due_ns = self._timed[sensor].due_ns()
        if due_ns is None:
            self._due_ns.pop(sensor, None)
        else:
            self._due_ns[sensor] = due_ns
            heapq.heappush(self._due_heap, (due_ns, sensor))

    def _make_room(self) -> None:
        if len(self._rings) >= self._max_sensors:
            dropped, _ = self._rings.popitem(last=False)
            self._timed.pop(dropped, None)
            self._due_ns.pop(dropped, None)
            self.counters["sensors_evicted"] += 1

    def _restart(self, sensor: str, ring: Ring) -> None:
        self.counters["windows_restarted"] += 1
        if sensor in self._timed:
            self._timed[sensor].restart()
        else:
            ring.restart()
