"""Windows of a journal continue in another process: replay of its records, and the records for its next snapshot."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gateway.frontends.mqtt.journal.journal import Recovered
from gateway.frontends.mqtt.journal.records import (
    DoneRecord,
    Record,
    SampleRecord,
    SensorRecord,
    complete_window,
    ring_state,
    samples_of,
    sensor_record,
    sensor_state,
)
from gateway.frontends.mqtt.routes.feed import RouteDecoder
from gateway.frontends.mqtt.routes.inputs import Ready
from gateway.frontends.mqtt.windows.rings import Complete
from gateway.frontends.mqtt.windows.sensors import Windows

Found = tuple[str, Complete]
"""Sensor and window."""


class RouteRecovery:
    """Records of one route, until its model is known.

    They are replayed with the times of arrival since the epoch in place of the monotonic clock.
    """

    def __init__(self, feed: RouteDecoder, recovered: Recovered, counters: Counter[str]) -> None:
        name = feed.route.name
        self._feed, self._counters = feed, counters
        self._records = [record for record in recovered.records if record.route == name]
        self._windows = [record for record in recovered.windows if record.route == name]
        self._done = {done for done in recovered.done if done[0] == name}

    @property
    def is_pending(self) -> bool:
        """Return True if there are records that were not replayed."""
        return bool(self._records or self._windows)

    def records(self) -> Iterator[Record]:
        """Yield the records that were not replayed, for a snapshot."""
        yield from self._records
        yield from self._windows
        for done in self._done:
            yield DoneRecord(*done)

    def replay(self, windows: Windows) -> Iterator[Ready]:
        """Yield the inputs that have no result. Records that no longer fit the route are dropped and counted."""
        records, complete = self._records, self._windows
        self._records, self._windows = [], []
        for record in complete:
            yield self._feed.ready(record.sensor, complete_window(record))
        for one in records:
            try:
                for sensor, window in _replayed(windows, one):
                    if (one.route, sensor, window.number) not in self._done:
                        yield self._feed.ready(sensor, window)
            except ValueError:  # the window has another shape, or samples other columns, since then
                self._counters["windows_discarded"] += 1
        self._done.clear()
        windows.resume(time.time_ns(), time.monotonic_ns())


def window_states(feeds: Iterable[RouteDecoder], recoveries: Iterable[RouteRecovery]) -> Iterator[Record]:
    """Yield the records of all windows that are not complete, for a snapshot."""
    for recovery in recoveries:
        yield from recovery.records()
    offset_ns = _wall_offset_ns()
    for feed in feeds:
        for sensor, seen_ns, ring, state in feed.states():
            waiting = tuple(replace(sample, arrived_ns=sample.arrived_ns + offset_ns) for sample in state.waiting)
            yield sensor_record(feed.route.name, sensor, seen_ns + offset_ns, ring, replace(state, waiting=waiting))


def _replayed(windows: Windows, record: SampleRecord | SensorRecord) -> Iterator[Found]:
    if isinstance(record, SensorRecord):
        state = sensor_state(record)
        windows.restore(record.sensor, record.seen_ns, ring_state(record), state)
        found = windows.put(record.sensor, state.waiting, now_ns=record.seen_ns, wall_ns=record.seen_ns)
        yield from ((record.sensor, window) for window in (found if state.waiting else ()))
        return
    wall_ns = record.wall_ns
    yield from windows.expire(wall_ns)
    if windows.is_timed:
        found = windows.put(record.sensor, samples_of(record), now_ns=wall_ns, wall_ns=wall_ns)
    else:
        found = windows.append(record.sensor, record.array(), now_ns=wall_ns, wall_ns=wall_ns)
    yield from ((record.sensor, window) for window in found)


def _wall_offset_ns() -> int:
    """Return the difference between the clock since the epoch and the monotonic one."""
    return time.time_ns() - time.monotonic_ns()
