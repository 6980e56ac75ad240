"""Table of `edge-gateway watch`: a bounded number of sensors, with rate, lag, last result and errors. Pure.

Times are arguments: `now_s` is on the monotonic clock, `wall_s` the Unix time.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from gateway.serving.cli.watch_messages import WatchedError, WatchedMessage, WatchedResult, WatchedStatus

WINDOW_S = 10
"""Time over which results are counted for the rate."""
LEAST_RATE_S = 1.0
"""Least time by which results are divided for the rate: the first one is no burst."""
ROWS_LIMIT = 500
"""Most sensors in the table."""


@dataclass(frozen=True, slots=True)
class SensorLine:
    """Line of the table. `lag_s`, `age_s` and `last` are None without a result, `lag_s` without its `ended_at`, too."""

    route: str
    sensor: str
    results: int
    results_per_s: float
    lag_s: float | None
    age_s: float | None
    last: WatchedResult | None
    errors: int
    last_error: str


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """Table at one time, sorted by route and sensor. `removed`: lines that made room for newer ones."""

    lines: tuple[SensorLine, ...]
    removed: int
    status: str
    last_error: WatchedError | None
    last_error_age_s: float | None


@dataclass(slots=True)
class _WatchedSensor:
    """Counters of a sensor. `seconds` are the results of the last seconds: second and count."""

    results: int = 0
    errors: int = 0
    seconds: deque[list[int]] = field(default_factory=lambda: deque(maxlen=WINDOW_S))
    last: WatchedResult | None = None
    received_s: float = 0.0
    last_error: str = ""


class SensorTable:
    """State of the table. Sensors beyond `limit` replace the one that was received least recently.

    `begin_s`: time since which messages are received. `part`: keep only sensors whose name contains it, in any case.
    """

    def __init__(self, begin_s: float, *, part: str = "", limit: int = ROWS_LIMIT) -> None:
        self._begin_s, self._part, self._limit = begin_s, part.casefold(), limit
        self._sensors: OrderedDict[tuple[str, str], _WatchedSensor] = OrderedDict()
        self._removed = 0
        self._status = ""
        self._last_error: WatchedError | None = None
        self._last_error_s = 0.0

    def receive(self, message: WatchedMessage, now_s: float) -> None:
        """Count a message."""
        if isinstance(message, WatchedStatus):
            self._status = message.text
            return
        if self._part not in message.sensor.casefold():
            return
        sensor = self._sensors.setdefault((message.route, message.sensor), _WatchedSensor())
        self._sensors.move_to_end((message.route, message.sensor))
        if len(self._sensors) > self._limit:
            self._sensors.popitem(last=False)
            self._removed += 1
        if isinstance(message, WatchedError):
            sensor.errors += 1
            sensor.last_error = message.text
            self._last_error, self._last_error_s = message, now_s
            return
        sensor.results += 1
        sensor.last, sensor.received_s = message, now_s
        if sensor.seconds and sensor.seconds[-1][0] >= int(now_s):
            sensor.seconds[-1][1] += 1
        else:
            sensor.seconds.append([int(now_s), 1])

    def snapshot(self, now_s: float, wall_s: float) -> TableSnapshot:
        """Return the table at a time."""
        lines = tuple(self._line(key, now_s, wall_s) for key in sorted(self._sensors))
        age_s = None if self._last_error is None else now_s - self._last_error_s
        return TableSnapshot(lines, self._removed, self._status, self._last_error, age_s)

    def _line(self, key: tuple[str, str], now_s: float, wall_s: float) -> SensorLine:
        one = self._sensors[key]
        last, ended_s = one.last, one.last.ended_s if one.last else None
        return SensorLine(
            *key,
            results=one.results,
            results_per_s=self._rate(one, now_s),
            lag_s=None if ended_s is None else wall_s - ended_s,
            age_s=None if last is None else now_s - one.received_s,
            last=last,
            errors=one.errors,
            last_error=one.last_error,
        )

    def _rate(self, sensor: _WatchedSensor, now_s: float) -> float:
        """Return results per second: those of this second and of the whole ones before it."""
        first = int(now_s) - WINDOW_S + 1
        counted = sum(count for second, count in sensor.seconds if second >= first)
        return counted / max(LEAST_RATE_S, min(now_s - first, now_s - self._begin_s))
