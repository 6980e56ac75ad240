"""State of one rule for one sensor: which message is due, and when. No I/O, and the clock is passed in."""

from __future__ import annotations

from collections import deque

from gateway.frontends.mqtt.outbound.conditions import State, aggregated, state_of, value_of
from gateway.frontends.mqtt.outbound.rows import ResultRow
from gateway.frontends.mqtt.settings.rules import RuleSettings
from gateway.frontends.mqtt.settings.templates import Values


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
        raw = self._raw_state(value, row)
        if raw is not None:
            self._debounce(raw, now_ns)
        if raw is None or self.state != raw:
            return False
        self.values = {**values, "rule": self.rule.name, "state": raw}
        return self._is_due(now_ns)

    def due_ns(self) -> int | None:
        """Return the time at which a message is due without a result: a heartbeat, or a change that was delayed."""
        if self._sent_ns is None or self.state is None:
            return None
        times = [self.rule.min_interval_s] if self._delayed else []
        if self.rule.heartbeat_s and not self._delayed and self._repeats():
            times.append(max(self.rule.heartbeat_s, self.rule.min_interval_s))
        return self._sent_ns + _ns(times[0]) if times else None

    def sent(self, now_ns: int, *, accepted: bool) -> None:
        """Record that a message was sent. One that was not accepted is due again at the next result."""
        self._sent_ns, self._delayed = now_ns, False
        if accepted:
            self.published = self.state

    def _raw_state(self, value: str | float, row: ResultRow) -> State | None:
        """Return the state that a value makes; None until enough values are known for the aggregate."""
        self._history.append(value)
        if len(self._history) < self.rule.aggregate_results:
            return None
        whole = aggregated(self.rule.aggregate, self._history) if self.rule.aggregate else value
        return state_of(self.rule, whole, row, self._raw)

    def _debounce(self, raw: State, now_ns: int) -> None:
        """Adopt a state that enough results, for long enough, agree on."""
        if raw != self._raw:
            self._raw, self._raw_results, self._raw_ns = raw, 0, now_ns
        self._raw_results += 1
        is_long = now_ns - self._raw_ns >= _ns(self.rule.debounce_s)
        if self._raw_results >= self.rule.debounce_results and is_long:
            self.state = raw

    def _is_due(self, now_ns: int) -> bool:
        if not self._wants():
            self._settle()
            return False
        allowed_ns = None if self._sent_ns is None else self._sent_ns + _ns(self.rule.min_interval_s)
        if allowed_ns is None or now_ns >= allowed_ns:
            return True
        self._delayed = self.rule.publish != "result"
        return False

    def _wants(self) -> bool:
        """Return True if the state is one that the rule publishes and has not yet."""
        return self.rule.publish == "result" or (self.state != self.published and self._concerns())

    def _concerns(self) -> bool:
        """Return True if the rule publishes messages of the present state."""
        if self.rule.publish == "enter":
            return self.state is True
        if self.rule.publish == "leave":
            return self.state is False and self.published is not None
        return True

    def _repeats(self) -> bool:
        return self.state == self.published and self._sent_ns is not None and self._concerns()

    def _settle(self) -> None:
        """Accept a state that has no message of its own, or that was the last message's again."""
        self._delayed = False
        if self.state != self.published:
            self.published = self.state


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
