"""Windows of a journal continue in another process: replay of its records, and the records for its next snapshot."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import chain

import numpy as np

from gateway.serving.frontends.mqtt.inbound.decoder import RouteDecoder
from gateway.serving.frontends.mqtt.journal.journal import MakeRecord, Recovered, unchanged
from gateway.serving.frontends.mqtt.journal.records import (
    DoneRecord,
    ExpiredRecord,
    HeldRecord,
    Record,
    SampleRecord,
    SensorRecord,
    WindowRecord,
    complete_window,
    read_frames,
    ring_state,
    samples_of,
    sensor_record,
    sensor_state,
)
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.windows.rings import Complete
from gateway.serving.frontends.mqtt.windows.sensors import Windows

_LOG = logging.getLogger(__name__)
Found = tuple[str, Complete]
"""Sensor and window."""


class RouteRecovery:
    """Records of one route, until its model is known.

    They are replayed with the times of their arrival on the monotonic clock of the process that wrote them.
    """

    def __init__(self, decoder: RouteDecoder, recovered: Recovered, counters: Counter[str]) -> None:
        name = decoder.route.name
        self._decoder, self._counters = decoder, counters
        self._frames = recovered.frames.pop(name, bytearray())
        self._windows = [record for record in recovered.windows if record.route == name]
        self._done = {done for done in recovered.done if done[0] == name}

    @property
    def is_pending(self) -> bool:
        """Return True if there are records that were not replayed."""
        return bool(self._frames or self._windows)

    def records(self) -> Iterator[MakeRecord]:
        """Yield the records that were not replayed, for a snapshot."""
        for record in (*(record for record, _ in read_frames(self._frames)), *self._windows):
            yield partial(unchanged, record)
        for done in self._done:
            yield partial(DoneRecord, *done)

    def replay(self, windows: Windows) -> Iterator[Ready]:
        """Yield the inputs that have no result. Records that no longer fit the route are dropped and counted."""
        frames, found = self._frames, self._windows
        self._frames, self._windows = bytearray(), []
        last_ns = 0
        for record in chain(found, (record for record, _ in read_frames(frames))):
            last_ns = max(last_ns, _arrived_ns(record))
            for sensor, window in self._fitting(windows, record):
                if (self._decoder.route.name, sensor, window.number) not in self._done:
                    yield self._decoder.ready(sensor, window)
        self._done.clear()
        windows.resume(last_ns, time.monotonic_ns())

    def _fitting(self, windows: Windows, record: Record) -> Iterator[Found]:
        try:
            yield from _replayed(windows, record)
        except ValueError:  # the window has another shape, or samples other columns, since then
            self._counters["windows_discarded"] += 1
        except Exception:  # noqa: BLE001  a record that causes a defect must not prevent the start
            self._counters["windows_discarded"] += 1
            _LOG.exception("journal record dropped: route %r; report this traceback", self._decoder.route.name)


def discard_others(recovered: Recovered, routes: Collection[str], counters: Counter[str]) -> None:
    """Count and report the records of routes that are no longer configured."""
    found: tuple[WindowRecord | HeldRecord, ...] = (*recovered.windows, *recovered.held.values())
    names = Counter(one.route for one in found if one.route not in routes)
    for name in recovered.frames.keys() - set(routes):
        names[name] += sum(1 for _ in read_frames(recovered.frames[name]))
    for name, count in names.items():
        counters["windows_discarded"] += count
        _LOG.warning("the MQTT journal has %d records of route %r, which is not configured: dropped", count, name)


def window_states(decoders: Iterable[RouteDecoder], recoveries: Iterable[RouteRecovery]) -> Iterator[MakeRecord]:
    """Yield the records of all windows that are not complete, for a snapshot."""
    for recovery in recoveries:
        yield from recovery.records()
    for decoder in decoders:
        for sensor, ring, state in decoder.states():
            yield partial(sensor_record, decoder.route.name, sensor, ring, state)


def _arrived_ns(record: Record) -> int:
    match record:
        case SensorRecord():
            return record.seen_ns
        case SampleRecord():
            return record.arrived_ns
        case ExpiredRecord():
            return record.now_ns
    return 0


def _replayed(windows: Windows, record: Record) -> Iterator[Found]:
    """Yield the windows that a record completes. Raises ValueError if it does not fit."""
    match record:
        case WindowRecord():
            if not windows.fits(len(record.rows), record.channels):
                raise ValueError("this window has another shape")
            yield record.sensor, complete_window(record)
        case ExpiredRecord():
            yield from windows.expire(record.now_ns)
        case SensorRecord():
            yield from _restored(windows, record)
        case SampleRecord():
            yield from ((record.sensor, window) for window in _added(windows, record))


def _restored(windows: Windows, record: SensorRecord) -> Iterator[Found]:
    state = sensor_state(record)
    if bool(state.joined) != windows.joins:
        raise ValueError("rows of this window were made in another way")
    windows.restore(record.sensor, record.seen_ns, ring_state(record), state)
    if state.waiting and windows.is_timed:
        for window in windows.put(record.sensor, state.waiting, now_ns=record.seen_ns, wall_ns=record.seen_ns):
            yield record.sensor, window


def _added(windows: Windows, record: SampleRecord) -> Iterator[Complete]:
    if record.channels != windows.shape.channels:
        raise ValueError("these samples have other channels")
    if not windows.joins and np.isnan(record.array()).any():
        raise ValueError("these samples are parts of rows, which were joined by time")
    now_ns, wall_ns = record.arrived_ns, record.wall_ns
    windows.lose(record.sensor, record.lost)
    if windows.is_timed:
        return windows.put(record.sensor, samples_of(record), now_ns=now_ns, wall_ns=wall_ns)
    return windows.append(record.sensor, record.array(), now_ns=now_ns, wall_ns=wall_ns)
