"""Ring of the last samples of one sensor, and the windows that they complete. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.serving.frontends.mqtt.windows.samples import Rows

Times = npt.NDArray[np.int64]
Marks = npt.NDArray[np.int32]

FILLED = -1
"""Mark of a row that was filled in."""


@dataclass(frozen=True, slots=True)
class WindowShape:
    """Window of `size_rows` samples with `channels` numbers each; one is complete every `hop_rows` samples."""

    size_rows: int
    channels: int
    hop_rows: int

    @property
    def size_bytes(self) -> int:
        """Return the size of its samples."""
        return self.size_rows * self.channels * 4


@dataclass(frozen=True, slots=True)
class Complete:
    """Full window [size_rows, channels], or a shorter one of a session that ended, owned by the caller.

    `started_ns`, `ended_ns`: least and greatest time of its samples (epoch ns). `gap_ns`: longest time between two of
    them. `missing_rows`: rows that were filled in, or that are missing between two rows. `number`: of its last row,
    counted from the first number of the ring, so that windows of another shape have other numbers.
    """

    rows: Rows
    started_ns: int
    ended_ns: int
    gap_ns: int
    missing_rows: int
    number: int


@dataclass(frozen=True, slots=True)
class RingState:
    """Content of a ring: its rows [n, channels] in order, with times and marks [n]; `due` and `number` as in `Ring`."""

    rows: Rows
    times_ns: Times
    marks: Marks
    due: int
    number: int


class Ring:
    """Last `size_rows` samples of one sensor.

    `due` is the number of rows until the next window, `number` that of the next row. `first_number` must be greater
    than the numbers of earlier rings of the sensor.
    """

    __slots__ = (
        *("_count", "_marks", "_next", "_rows", "_shape", "_times_ns"),
        *("due", "is_kept", "number", "seen_ns", "unkept"),
    )

    def __init__(self, shape: WindowShape, first_number: int = 0) -> None:
        self._shape = shape
        self._rows: Rows = np.empty((shape.size_rows, shape.channels), np.float32)
        self._times_ns: Times = np.zeros(shape.size_rows, np.int64)
        self._marks: Marks = np.zeros(shape.size_rows, np.int32)
        self._next = self._count = 0
        self.due, self.number = shape.size_rows, first_number
        self.seen_ns = 0
        self.is_kept, self.unkept = False, 0
        """True once the journal has the first number on the disk; windows that wait for that."""

    @property
    def is_empty(self) -> bool:
        """Return True if it holds no samples."""
        return not self._count

    def restart(self) -> None:
        """Forget all samples."""
        self._next, self._count, self.due = 0, 0, self._shape.size_rows

    def copy(self) -> Ring:
        """Return a copy, which another thread may read."""
        made = Ring.__new__(Ring)
        made._shape, made._next, made._count = self._shape, self._next, self._count
        made._rows, made._times_ns, made._marks = self._rows.copy(), self._times_ns.copy(), self._marks.copy()
        made.due, made.number, made.seen_ns = self.due, self.number, self.seen_ns
        return made

    def state(self) -> RingState:
        """Return a copy of the content."""
        held = np.arange(self._next - self._count, self._next) % self._shape.size_rows
        return RingState(self._rows[held], self._times_ns[held], self._marks[held], self.due, self.number)

    def restore(self, state: RingState) -> None:
        """Replace the content. Raises ValueError if it does not fit the shape."""
        count = len(state.rows)
        size_rows = self._shape.size_rows
        fits = state.due == size_rows - count if count < size_rows else 0 < state.due <= self._shape.hop_rows
        if count > size_rows or not fits or state.rows.shape[1:] != (self._shape.channels,):
            raise ValueError("these rows are of another window")
        self._rows[:count], self._times_ns[:count], self._marks[:count] = state.rows, state.times_ns, state.marks
        self._next, self._count = count % self._shape.size_rows, count
        self.due, self.number = state.due, state.number

    def append(self, samples: Rows, times_ns: int | Times, marks: Marks | None = None) -> Iterator[Complete]:
        """Add `samples` [n, channels]. Yield each window that they complete.

        `times_ns`: of all samples, or of each. `marks` [n]: rows that are missing before a sample, or FILLED.
        """
        size, start = self._shape.size_rows, 0
        while start < len(samples):
            count = min(size - self._next, len(samples) - start, self.due)
            here, there = slice(self._next, self._next + count), slice(start, start + count)
            self._rows[here] = samples[there]
            self._times_ns[here] = times_ns if isinstance(times_ns, int) else times_ns[there]
            self._marks[here] = 0 if marks is None else marks[there]
            self._next, self._count = (self._next + count) % size, min(size, self._count + count)
            self.due -= count
            self.number += count
            start += count
            if not self.due:
                self.due, first = self._shape.hop_rows, self._next
                rows = np.concatenate((self._rows[first:], self._rows[:first]))
                times = np.concatenate((self._times_ns[first:], self._times_ns[:first]))
                yield _described(rows, times, np.concatenate((self._marks[first:], self._marks[:first])), self.number)

    def end(self) -> Complete | None:
        """Return the rows since the last window as a shorter one, or None if there are none. Forget all samples.

        It is for windows that do not overlap: `hop_rows` is `size_rows`.
        """
        count = self._shape.size_rows - self.due
        held = np.arange(self._next - count, self._next) % self._shape.size_rows
        rows, times_ns, marks = self._rows[held], self._times_ns[held], self._marks[held]
        self.restart()
        return _described(rows, times_ns, marks, self.number) if count else None


def _described(rows: Rows, times_ns: Times, marks: Marks, number: int) -> Complete:
    """Return a window of rows in order. Rows that are missing before the first one are not in it."""
    gap_ns = int(np.diff(times_ns).max(initial=0))
    missing = int(np.abs(marks).sum() - max(0, marks[0])) if marks.any() else 0
    return Complete(rows, int(times_ns.min()), int(times_ns.max()), gap_ns, missing, number)


@dataclass(frozen=True, slots=True)
class Padding:
    """Padding to `size_rows` rows. `pad`: zero, first or last."""

    size_rows: int
    pad: str

    def apply(self, rows: Rows) -> Rows:
        """Return `rows` [n, channels] with the missing ones; `rows` itself if none is."""
        count = self.size_rows - len(rows)
        if not count:
            return rows
        before, after = (0, count) if self.pad == "last" else (count, 0)
        return np.pad(rows, ((before, after), (0, 0)), mode="constant" if self.pad == "zero" else "edge")
