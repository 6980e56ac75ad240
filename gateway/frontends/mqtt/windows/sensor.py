"""Window of one sensor whose samples are ordered, or whose sessions end by silence. Pure: the clock is passed in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from gateway.frontends.mqtt.windows.gaps import TimedRows, between, resampled, single
from gateway.frontends.mqtt.windows.joining import Joiner
from gateway.frontends.mqtt.windows.ordering import Ordering, new_ordering
from gateway.frontends.mqtt.windows.rings import Complete, Ring
from gateway.frontends.mqtt.windows.samples import Sample, SensorState
from gateway.frontends.mqtt.windows.timing import MISSING_LIMIT_ROWS, RESAMPLE_LIMIT_ROWS, SampleTiming

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
