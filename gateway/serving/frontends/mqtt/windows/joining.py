"""Rows of values that come in samples of their own, such as x, y and z on three topics: joined by their times.

A row is made when a sample passes that is as late as the row: all samples that are `lateness_ns` younger have come by
then, and those that wait for their turn are known here, so that a row waits no longer than its own sample does. Pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from gateway.serving.frontends.mqtt.windows.ordering import DUPLICATES
from gateway.serving.frontends.mqtt.windows.samples import ChannelRules, HeldValue, JoinRules, Row, Sample

UNJOINED = "rows_unjoined"
"""Counter of rows that lack a channel."""
GRID_LIMIT_ROWS, GRID_LIMIT_VALUES = 1_000, 10_000
"""Most rows of a fixed rate, and values in them, that are made at once: 10 ms.

Of a longer time without samples, only the last row is made.
"""
_NEVER_NS = -(2**63)


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

    def value(self, time_ns: int, rules: JoinRules) -> tuple[float, bool]:
        """Return the value at a time (NaN: none), and whether a sample is near."""
        times, values, place = self._times, self._values, bisect_left(self._times, time_ns)
        ahead_ns = times[place] - time_ns if place < len(times) else math.inf
        behind_ns = time_ns - times[place - 1] if place else math.inf
        if ahead_ns == 0 or (not rules.linear and ahead_ns < behind_ns and ahead_ns <= rules.tolerance_ns):
            return values[place], True
        if not rules.linear and behind_ns <= rules.tolerance_ns:
            return values[place - 1], True
        if rules.linear and max(ahead_ns, behind_ns) <= rules.tolerance_ns:
            before, share = values[place - 1], behind_ns / (behind_ns + ahead_ns)
            return before + (values[place] - before) * share, True
        if self._rules.zero:
            return 0.0, False
        return (values[place - 1] if behind_ns <= self._rules.held_ns else math.nan), False


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
        if sample.restarts:  # the clock of the sensor was set back: all samples are forgotten
            self._tracks = [ChannelTrack(each) for each in self._rules.channels]
            self._passed_ns, self._lead_ns, self.next_ns = sample.time_ns, _NEVER_NS, _NEVER_NS
            self.add(sample)
        times = self._times(sample)
        self._passed_ns = sample.time_ns
        for time_ns in times:
            values, near = zip(*(track.value(time_ns, self._rules) for track in self._tracks), strict=True)
            row = np.array(values, np.float32)
            if any(near) and not np.isnan(row).any():
                yield Sample(row, time_ns, sample.arrived_ns)
            else:
                self._counters[UNJOINED] += 1
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

    def _times(self, sample: Sample) -> Sequence[int]:
        """Return the times of the rows that are due."""
        time_ns, interval_ns = sample.time_ns, self._rules.interval_ns
        if interval_ns:
            if self.next_ns == _NEVER_NS:
                self.next_ns = time_ns
            steps = (time_ns - self.next_ns) // interval_ns
            if steps > min(GRID_LIMIT_ROWS, GRID_LIMIT_VALUES // len(self._tracks)):
                self.next_ns += steps * interval_ns
            times = range(self.next_ns, time_ns + 1, interval_ns)
            self.next_ns += len(times) * interval_ns
            return times
        if np.isnan(sample.row[self._rules.lead]) or time_ns == self._lead_ns:
            return ()
        self._lead_ns = time_ns
        return (time_ns,)


def _present(row: Row) -> Iterator[tuple[int, float]]:
    """Yield the channels that a row has, with their values."""
    return ((place, value) for place, value in enumerate(row.tolist()) if value == value)  # noqa: PLR0124  NaN differs
