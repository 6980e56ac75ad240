"""Sliding windows over sensors' samples: a ring per sensor, bounded in number. Pure: the clock is passed in."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Window of `size_rows` samples with `channels` numbers each; one is complete every `hop_rows` samples."""

    size_rows: int
    channels: int
    hop_rows: int


@dataclass(frozen=True, slots=True)
class Complete:
    """Full window [size_rows, channels], owned by the caller, and the times of its first and last sample (epoch ns)."""

    rows: Rows
    started_ns: int
    ended_ns: int


class Ring:
    """Last `size_rows` samples of one sensor, and the number of rows until the next window."""

    __slots__ = ("_next", "_rows", "_shape", "_wall_ns", "due", "seen_ns")

    def __init__(self, shape: WindowShape) -> None:
        self._shape = shape
        self._rows: Rows = np.empty((shape.size_rows, shape.channels), np.float32)
        self._wall_ns = np.zeros(shape.size_rows, np.int64)
        self._next = 0
        self.due = shape.size_rows
        self.seen_ns = 0

    def restart(self) -> None:
        """Forget all samples."""
        self._next, self.due = 0, self._shape.size_rows

    def append(self, samples: Rows, wall_ns: int) -> Iterator[Complete]:
        """Add `samples` [n, channels] that came at `wall_ns`. Yield each window that they complete."""
        size, start = self._shape.size_rows, 0
        while start < len(samples):
            count = min(size - self._next, len(samples) - start, self.due)
            self._rows[self._next : self._next + count] = samples[start : start + count]
            self._wall_ns[self._next : self._next + count] = wall_ns
            self._next = (self._next + count) % size
            self.due -= count
            start += count
            if not self.due:
                self.due = self._shape.hop_rows
                yield self._complete()

    def _complete(self) -> Complete:
        first = self._next
        rows = np.concatenate((self._rows[first:], self._rows[:first]))
        return Complete(rows, int(self._wall_ns[first]), int(self._wall_ns[first - 1]))


class Windows:
    """Rings of one route's sensors. Dropped rings are counted in `counters`."""

    def __init__(
        self, shape: WindowShape, max_sensors: int, idle_expiry_ns: int, counters: Counter[str] | None = None
    ) -> None:
        self.shape = shape
        self.counters: Counter[str] = Counter() if counters is None else counters
        self._max_sensors = max_sensors
        self._idle_expiry_ns = idle_expiry_ns
        self._rings: OrderedDict[str, Ring] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rings)

    def append(self, sensor: str, samples: Rows, *, now_ns: int, wall_ns: int) -> Iterator[Complete]:
        """Yield the windows that a sensor's samples [n, channels] complete. The samples are added as windows are taken.

        A sensor without samples for longer than the idle expiry starts again. If there are too many sensors, the least
        recently seen one is dropped.
        """
        ring = self._ring(sensor)
        if ring.seen_ns and now_ns - ring.seen_ns > self._idle_expiry_ns:
            ring.restart()
            self.counters["windows_restarted"] += 1
        ring.seen_ns = now_ns
        return ring.append(samples, wall_ns)

    def _ring(self, sensor: str) -> Ring:
        ring = self._rings.get(sensor)
        if ring is not None:
            self._rings.move_to_end(sensor)
            return ring
        if len(self._rings) >= self._max_sensors:
            self._rings.popitem(last=False)
            self.counters["sensors_evicted"] += 1
        ring = self._rings[sensor] = Ring(self.shape)
        return ring
