"""Windows of one route's sensors, bounded in number. Pure: the clock is passed in."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np

from gateway.frontends.mqtt.windows.rings import Complete, Ring, RingState, WindowShape
from gateway.frontends.mqtt.windows.samples import Rows, Sample, SensorState
from gateway.frontends.mqtt.windows.sensor import SensorWindow
from gateway.frontends.mqtt.windows.timing import SampleTiming


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
        self._lost: dict[str, int] = {}
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
    def is_timed(self) -> bool:
        """Return True if samples are `put` with times or sequence numbers of their own, and not appended."""
        return self._timing is not None

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
        ring, lost = self._ring(sensor, now_ns, wall_ns), self._lost.pop(sensor, 0)
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
        window, lost = self._window(sensor, self._ring(sensor, now_ns, wall_ns)), self._lost.pop(sensor, 0)
        for sample in samples:
            sample.missing, lost = sample.missing + lost, 0
            yield from window.put(sample)
        due_ns, known_ns = window.due_ns(), self._due_ns.get(sensor)
        if due_ns is None or known_ns is None or due_ns < known_ns:
            self._schedule(sensor, due_ns)

    def lose(self, sensor: str, count: int = 1) -> None:
        """Note that samples of a sensor were refused. The next one carries the gap; sequence numbers show it anyway."""
        if count and not self._by_sequence and sensor in self._rings and not self._rings[sensor].is_empty:
            self._lost[sensor] = self.lost(sensor) + count

    def lost(self, sensor: str) -> int:
        """Return the number of samples of a sensor that were refused since the last one."""
        return self._lost.get(sensor, 0)

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
        restored.seen_ns = seen_ns
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
            self._lost.pop(dropped, None)
            self._due_ns.pop(dropped, None)
            self.counters["sensors_evicted"] += 1

    def _restart(self, sensor: str, ring: Ring) -> None:
        self.counters["windows_restarted"] += 1
        if sensor in self._timed:
            self._timed[sensor].restart()
        else:
            ring.restart()
