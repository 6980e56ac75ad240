"""Rules of one route: conditions on results, their states by sensor, and the messages that are due. No I/O.

States are bounded in number, and the clock is passed in.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gateway.serving.frontends.mqtt.outbound.rows import ResultRow
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from gateway.serving.frontends.mqtt.settings.templates import Values

State = bool | str | float
"""State of a rule: on or off of a condition, else a label or a number."""


def value_of(name: str, row: ResultRow) -> str | float | None:
    """Return the value that a rule names; None if the result does not have it."""
    kind, _, part = name.partition(".")
    if kind in {"label", "anomalous"}:
        return row.label if kind == "label" else row.anomalous
    if kind == "score":
        return row.score_of(part) if part else row.score
    if kind == "count":
        return row.count_of(part)
    return row.output(part) if part else row.value


def aggregated(kind: str, values: Sequence[str | float]) -> str | float:
    """Return the aggregate of values, which are numbers unless it is a majority.

    Of equally frequent values the one that came last counts.
    """
    if kind == "majority":
        counts = Counter(values)
        most = max(counts.values())
        return next(value for value in reversed(values) if counts[value] == most)
    numbers = [float(value) for value in values]
    return max(numbers) if kind == "max" else sum(numbers) / len(numbers)


def state_of(rule: RuleSettings, value: str | float, row: ResultRow, was: State | None) -> State:
    """Return the state that `value`, a number if the rule needs one, makes of `was`."""
    if rule.labels:
        named = {value} if rule.top_k == 1 else set(row.best_labels(rule.top_k))
        return not named.isdisjoint(rule.labels)
    if not (rule.above or rule.below):
        return value
    # it passes the first bound, or where it did before, not yet the last one
    bounds, sign = (rule.above, 1) if rule.above else (rule.below, -1)
    distance, end = sign * float(value), sign * bounds[-1]
    return distance > sign * bounds[0] or (was is True and distance >= end)


class SensorRule:
    """Rule of one sensor.

    `state` is the state after debouncing, None before there is one. `values` are placeholders of the last result that
    had this state. `published` is the state of the last message that was sent.
    """

    def __init__(self, rule: RuleSettings) -> None:
        self.rule = rule
        self.state: State | None = None
        self.published: State | None = None
        self.values: Values = {}
        self.queued_ns: int | None = None
        """Time of this state's valid entry in the queue of due times (`rules`)."""
        self._history: deque[str | float] = deque(maxlen=rule.aggregate_results)
        self._raw: State | None = None
        self._raw_results = 0
        self._raw_ns = 0
        self._sent_ns: int | None = None
        self._delayed = False

    def observe(self, row: ResultRow, values: Values, now_ns: int) -> bool | None:
        """Take a result. Return True if a message is due, None if the result lacks the rule's value."""
        value = value_of(self.rule.value, row)
        if value is None or (self.rule.needs_number and isinstance(value, str)):
            return None
        self._history.append(value)
        if len(self._history) < self.rule.aggregate_results:
            return False
        whole = aggregated(self.rule.aggregate, self._history) if self.rule.aggregate else value
        raw = state_of(self.rule, whole, row, self._raw)
        if raw != self._raw:
            self._raw, self._raw_results, self._raw_ns = raw, 0, now_ns
        self._raw_results += 1  # enough results, for long enough, must agree on a state
        is_long = now_ns - self._raw_ns >= _ns(self.rule.debounce_s)
        if self._raw_results >= self.rule.debounce_results and is_long:
            self.state = raw
        if self.state != raw:
            return False
        self.values = {**values, "rule": self.rule.name, "state": raw}
        return self._is_due(now_ns)

    def due_ns(self) -> int | None:
        """Return the time at which a message is due without a result: a heartbeat, or a change that was delayed."""
        if self._sent_ns is None or self.state is None:
            return None
        times = [self.rule.min_interval_s] if self._delayed else []
        is_sent = self.state == self.published and self._concerns()
        if self.rule.heartbeat_s and not self._delayed and is_sent:
            times.append(max(self.rule.heartbeat_s, self.rule.min_interval_s))
        return self._sent_ns + _ns(times[0]) if times else None

    def sent(self, now_ns: int, *, accepted: bool) -> None:
        """Record that a message was sent. One that was not accepted is due again at the next result."""
        self._sent_ns, self._delayed = now_ns, False
        if accepted:
            self.published = self.state

    def _is_due(self, now_ns: int) -> bool:
        if self.rule.publish != "result" and (self.state == self.published or not self._concerns()):
            self._delayed, self.published = False, self.state  # it has no message of its own
            return False
        allowed_ns = None if self._sent_ns is None else self._sent_ns + _ns(self.rule.min_interval_s)
        if allowed_ns is None or now_ns >= allowed_ns:
            return True
        self._delayed = self.rule.publish != "result"
        return False

    def _concerns(self) -> bool:
        """Return True if the rule publishes messages of the present state."""
        if self.rule.publish == "enter":
            return self.state is True
        if self.rule.publish == "leave":
            return self.state is False and self.published is not None
        return True


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


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
        for one in states.rules:
            is_due = one.observe(row, values, now_ns)
            self._counters["rule_values_missing"] += is_due is None
            if is_due:
                yield one
            self._queue(sensor, one)

    def forget(self, sensor: str) -> None:
        """Forget the states of a sensor."""
        self._sensors.pop(sensor, None)

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
