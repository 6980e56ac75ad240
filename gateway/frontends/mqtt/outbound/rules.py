"""Rules of one route for all its sensors, bounded in number. No I/O, and the clock is passed in."""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.frontends.mqtt.outbound.rows import ResultRow
from gateway.frontends.mqtt.outbound.rule_states import SensorRule
from gateway.frontends.mqtt.settings.rules import RuleSettings
from gateway.frontends.mqtt.settings.templates import Values


@dataclass(slots=True)
class SensorStates:
    """States of one sensor, one for each rule."""

    rules: list[SensorRule]
    seen_ns: int


DUE_SPARE = 64
"""Entries of the queue beyond twice the states before those that no longer count are removed."""


class RouteRules:
    """States of a route's rules by sensor. If there are too many sensors, the least recently seen one is forgotten.

    A caller publishes the message of each `SensorRule` that it gets, and reports that with `sent`.
    """

    def __init__(self, rules: Sequence[RuleSettings], max_sensors: int, counters: Counter[str]) -> None:
        self._rules, self._max_sensors, self._counters = tuple(rules), max_sensors, counters
        self._sensors: OrderedDict[str, SensorStates] = OrderedDict()
        self._due: list[tuple[int, int, str, SensorRule]] = []
        """Heap of due times. An entry is valid if its state's `queued_ns` is its time."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._sensors)

    def observe(self, sensor: str, row: ResultRow, values: Values, now_ns: int) -> Iterator[SensorRule]:
        """Take a result of a sensor. Yield the rules whose message is due now."""
        states = self._states(sensor, now_ns)
        for one in states.rules:
            is_due = one.observe(row, values, now_ns)
            self._counters["rule_values_missing"] += is_due is None
            if is_due:
                yield one
            self._queue(sensor, one)

    def due_ns(self) -> int | None:
        """Return the time of the next `expire`; None if nothing is due without a result."""
        while self._due and not self._is_valid(self._due[0]):
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def expire(self, now_ns: int) -> Iterator[SensorRule]:
        """Yield the rules whose message is due by now without a result: heartbeats, and changes that were delayed."""
        while (due_ns := self.due_ns()) is not None and due_ns <= now_ns:
            _, _, sensor, one = heapq.heappop(self._due)
            one.queued_ns = None
            if now_ns - self._sensors[sensor].seen_ns > int(one.rule.forget_s * 1e9):
                continue
            actual_ns = one.due_ns()
            if actual_ns is not None and actual_ns <= now_ns:
                yield one
            self._queue(sensor, one)

    def _queue(self, sensor: str, one: SensorRule) -> None:
        """Queue the due time of a state, unless an earlier entry will do so when it comes up."""
        due_ns = one.due_ns()
        if due_ns is not None and (one.queued_ns is None or due_ns < one.queued_ns):
            one.queued_ns = due_ns
            self._count += 1  # entries of the same time are compared by it
            heapq.heappush(self._due, (due_ns, self._count, sensor, one))
            if len(self._due) > DUE_SPARE + 2 * len(self._sensors) * len(self._rules):
                self._due = [entry for entry in self._due if self._is_valid(entry)]
                heapq.heapify(self._due)

    def _is_valid(self, entry: tuple[int, int, str, SensorRule]) -> bool:
        due_ns, _, sensor, one = entry
        states = self._sensors.get(sensor)
        return one.queued_ns == due_ns and states is not None and one in states.rules

    def _states(self, sensor: str, now_ns: int) -> SensorStates:
        states = self._sensors.get(sensor)
        if states is None:
            if len(self._sensors) >= self._max_sensors:
                self._sensors.popitem(last=False)
                self._counters["rule_sensors_evicted"] += 1
            states = self._sensors[sensor] = SensorStates([SensorRule(rule) for rule in self._rules], now_ns)
        self._sensors.move_to_end(sensor)
        gap_s, states.seen_ns = (now_ns - states.seen_ns) / 1e9, now_ns
        for index, rule in enumerate(self._rules):
            if gap_s > rule.forget_s:
                states.rules[index] = SensorRule(rule)
        return states
