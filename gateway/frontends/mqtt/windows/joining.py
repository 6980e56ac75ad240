"""Rows of values that come in samples of their own, such as x, y and z on three topics: joined by their times.

A row is made when a sample passes that is as late as the row: all samples that are `lateness_ns` younger have come by
then, and those that wait for their turn are known here, so that a row waits no longer than its own sample does. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gateway.frontends.mqtt.windows.ordering import DUPLICATES
from gateway.frontends.mqtt.windows.rings import Times
from gateway.frontends.mqtt.windows.samples import HeldValue, Row, Sample
from gateway.frontends.mqtt.windows.timing import ChannelRules, JoinRules

UNJOINED = "rows_unjoined"
"""Counter of rows that lack a channel."""
GRID_LIMIT_ROWS = 1_000
"""Most rows that are made at once; of a longer time without samples, only the last row is."""
_FAR_NS = 2**61
"""Distance of a sample that there is not."""
_NEVER_NS = -(2**63)
Near = npt.NDArray[np.bool_]
Column = npt.NDArray[np.float64]


class ChannelTrack:
    """Samples of one channel in the order of their times: the last one that passed, and those that wait."""

    __slots__ = ("_rules", "_times", "_values")

    def __init__(self, rules: ChannelRules) -> None:
        self._rules = rules
        self._times: list[int] = []
        self._values: list[float] = []

    def add(self, time_ns: int, value: float) -> bool:
        """Add a sample. Return False if there is one of this time: the first one counts."""
        place = bisect_left(self._times, time_ns)
        if place < len(self._times) and self._times[place] == time_ns:
            return False
        self._times.insert(place, time_ns)
        self._values.insert(place, value)
        return True

    def drop_before(self, time_ns: int) -> None:
        """Forget what no row after `time_ns` needs: all but the last sample up to then."""
        place = bisect_right(self._times, time_ns) - 1
        if place > 0:
            del self._times[:place], self._values[:place]

    def held(self, time_ns: int) -> HeldValue | None:
        """Return the last sample up to `time_ns`."""
        place = bisect_right(self._times, time_ns) - 1
        return (self._times[place], self._values[place]) if place >= 0 else None

    def column(self, times: Times, rules: JoinRules) -> tuple[Column, Near]:
        """Return the values at `times` (NaN: none), and for which of them a sample is near."""
        if not self._times:
            return np.full(len(times), 0.0 if self._rules.zero else np.nan), np.zeros(len(times), np.bool_)
        known, values, last = np.array(self._times), np.array(self._values), len(self._times) - 1
        after = np.searchsorted(known, times)
        later, earlier = np.minimum(after, last), np.maximum(after - 1, 0)
        ahead_ns = np.where(after <= last, _distance(known[later], times), _FAR_NS)
        behind_ns = np.where(after > 0, _distance(times, known[earlier]), _FAR_NS)
        found, near = _between if rules.linear else _nearest, rules.tolerance_ns
        column, is_near = found(values[earlier], values[later], behind_ns, ahead_ns, near)
        if self._rules.zero:
            return np.where(is_near, column, 0.0), is_near
        is_held = behind_ns <= self._rules.held_ns
        return np.where(is_near, column, np.where(is_held, values[earlier], np.nan)), is_near


def _distance(later: Times, earlier: Times) -> Times:
    """Return the time between two times, at most _FAR_NS: that of centuries does not fit 64 bits."""
    return np.minimum((later - earlier).view(np.uint64), np.uint64(_FAR_NS)).astype(np.int64)


def _nearest(
    earlier: Column, later: Column, behind_ns: Times, ahead_ns: Times, tolerance_ns: int
) -> tuple[Column, Near]:
    """Return the nearer one of two values, of equally near ones the earlier."""
    is_later = ahead_ns < behind_ns
    return np.where(is_later, later, earlier), np.minimum(ahead_ns, behind_ns) <= tolerance_ns


def _between(
    earlier: Column, later: Column, behind_ns: Times, ahead_ns: Times, tolerance_ns: int
) -> tuple[Column, Near]:
    """Return the value on the line between two samples that are near, or that of a sample at the very time."""
    is_there = ahead_ns == 0
    line = earlier + (later - earlier) * (behind_ns / np.maximum(1, behind_ns + ahead_ns))
    return np.where(is_there, later, line), is_there | (np.maximum(ahead_ns, behind_ns) <= tolerance_ns)


class Joiner:
    """Join of one sensor's samples, whose rows hold NaN for the channels that they lack.

    `add` each sample as it comes, then take the `rows` of each one that passes, in the order of their times.
    """

    def __init__(self, rules: JoinRules, counters: Counter[str]) -> None:
        self._rules, self._counters = rules, counters
        self._tracks = [ChannelTrack(each) for each in rules.channels]
        self._passed_ns = self._lead_ns = self.next_ns = _NEVER_NS
        """Times of the last sample that passed and of the last lead, and of the next row of a fixed rate."""

    def add(self, sample: Sample) -> None:
        """Note the values of a sample, unless it is late."""
        if sample.time_ns < self._passed_ns:
            return
        added = [self._tracks[place].add(sample.time_ns, value) for place, value in _present(sample.row)]
        self._counters[DUPLICATES] += not any(added)

    def rows(self, sample: Sample) -> Iterator[Sample]:
        """Yield the rows that are due once `sample` passes. Those that lack a channel are left out and counted."""
        if sample.restarts:
            self._restart(sample)
        times = self._times(sample)
        self._passed_ns = sample.time_ns
        if len(times):
            yield from self._joined(times, sample.arrived_ns)
        for place, _ in _present(sample.row):
            self._tracks[place].drop_before(sample.time_ns)

    def state(self) -> tuple[HeldValue | None, ...]:
        """Return the last sample of each channel that passed."""
        return tuple(track.held(self._passed_ns) for track in self._tracks)

    def restore(self, held: Sequence[HeldValue | None], next_ns: int) -> Sample | None:
        """Continue after `state`, in a new process. Return a sample of the time of the last one that passed, if any."""
        for track, one in zip(self._tracks, held, strict=False):
            if one is not None:
                track.add(*one)
                self._passed_ns = max(self._passed_ns, one[0])
        if self._passed_ns == _NEVER_NS:
            return None
        lead = held[self._rules.lead]
        self._lead_ns, self.next_ns = _NEVER_NS if lead is None else lead[0], next_ns
        return Sample(np.empty(0, np.float32), self._passed_ns, 0)

    def _restart(self, sample: Sample) -> None:
        """Forget all samples: the clock of the sensor was set back."""
        self._tracks = [ChannelTrack(each) for each in self._rules.channels]
        self._passed_ns, self._lead_ns, self.next_ns = sample.time_ns, _NEVER_NS, _NEVER_NS
        self.add(sample)

    def _times(self, sample: Sample) -> Times:
        """Return the times of the rows that are due."""
        if self._rules.interval_ns:
            return self._grid(sample.time_ns, self._rules.interval_ns)
        if np.isnan(sample.row[self._rules.lead]) or sample.time_ns == self._lead_ns:
            return np.empty(0, np.int64)
        self._lead_ns = sample.time_ns
        return np.array([sample.time_ns])

    def _grid(self, time_ns: int, interval_ns: int) -> Times:
        if self.next_ns == _NEVER_NS:
            self.next_ns = time_ns
        steps = (time_ns - self.next_ns) // interval_ns
        if steps > GRID_LIMIT_ROWS:
            self.next_ns += steps * interval_ns
        times = np.arange(self.next_ns, time_ns + 1, interval_ns, dtype=np.int64)
        self.next_ns += len(times) * interval_ns
        return times

    def _joined(self, times: Times, arrived_ns: int) -> Iterator[Sample]:
        columns, near = zip(*(track.column(times, self._rules) for track in self._tracks), strict=True)
        rows = np.column_stack(columns).astype(np.float32)
        whole = ~np.isnan(rows).any(axis=1) & np.any(near, axis=0)
        self._counters[UNJOINED] += len(times) - int(whole.sum())
        for row, time_ns in zip(rows[whole], times[whole].tolist(), strict=True):
            yield Sample(row, time_ns, arrived_ns)


def _present(row: Row) -> Iterator[tuple[int, float]]:
    """Yield the channels that a row has, with their values."""
    return ((place, value) for place, value in enumerate(row.tolist()) if value == value)  # noqa: PLR0124  NaN differs
