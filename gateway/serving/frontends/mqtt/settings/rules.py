"""Settings of the rules of a route: condition, filters, and the message that a rule publishes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.mqtt.settings.results import EXPIRY_LIMIT_S
from gateway.serving.frontends.mqtt.settings.templates import RULE_NAMES, check_payload, check_topic

AGGREGATES = ("", "mean", "max", "majority")
PUBLISH = ("change", "enter", "leave", "result")
RESULTS_LIMIT = 10_000
"""Most results that one sensor's state may depend on."""
SECONDS_LIMIT = 1e7
"""Longest time of a rule: about four months."""
TABLE = "mqtt.route.rule"
_VALUE = re.compile(r"anomalous|label|(score|count|value)(\..+)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class RuleSettings:
    """Settings of one `[[mqtt.route.rule]]`.

    `labels`, `above`, `below` or `value = "anomalous"` make a condition, whose state is on or off. Without them the
    state is the value itself.
    """

    name: str
    """Level of the rule's topic."""
    value: str = "label"
    """label, score, score.<label>, count, count.<label>, value (the only number), value.<output> or anomalous.

    count is the number of detections, of all labels or of one. anomalous is the verdict of anomaly
    detection, on or off, by the threshold of the model's manifest.
    """
    labels: tuple[str, ...] = ()
    """Labels for which the condition holds."""
    top_k: int = 1
    """Classes, best first, among which one of `labels` must be."""
    above: tuple[float, ...] = ()
    """Number above which the condition holds, then the one below which it ends (hysteresis; default: the same)."""
    below: tuple[float, ...] = ()
    """Number below which the condition holds, then the one above which it ends."""
    aggregate: str = ""
    """mean, max or majority of the last `aggregate_results` values takes the place of the value."""
    aggregate_results: int = 1
    """Results that are aggregated; there is no state before so many."""
    debounce_results: int = 1
    """Consecutive results that must agree on a new state."""
    debounce_s: float = 0.0
    """Time for which results must agree on a new state."""
    publish: str = "change"
    """change: when the state changes; enter, leave: when the condition begins, ends; result: at every result."""
    heartbeat_s: float = 0.0
    """Time after which the last message is published again if the state has not changed; 0: never."""
    min_interval_s: float = 0.0
    """Least time between two messages of one sensor; a change waits for it, and the last state counts."""
    topic: str = "edge/{gateway}/rules/{route}/{rule}/{sensor}"
    """Template of the topic."""
    payload: str = "value"
    """value: the state (on, off, or the value); text, json: as `template` says."""
    template: str = ""
    """Template of the payload."""
    qos: int = 1
    """Quality of service, 0 or 1."""
    retain: bool = False
    """Ask the broker to keep the last message of a topic."""
    expiry_s: int = 0
    """Message Expiry Interval (MQTT 5); 0: none."""
    forget_s: ClassVar[float] = 3600.0
    """Time without results after which a sensor's state is forgotten, and no longer repeated."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route.rule)."""
        for key, wrong, rule in (*self._wrong_conditions(), *self._wrong_times()):
            if wrong:
                value = getattr(self, key)
                raise ConfigurationError(f"must be {rule}, not {value!r:.150}", table=self.table, key=key)
        check_topic(self.topic, RULE_NAMES, table=self.table)
        check_payload(self.payload, self.template, RULE_NAMES, table=self.table)
        if self.payload == "json" and not self.template:
            raise ConfigurationError("missing; a rule's JSON needs one", table=self.table, key="template")

    @property
    def table(self) -> str:
        """Return the name of this rule in error messages."""
        return f"{TABLE}[{self.name:.80}]"

    @property
    def is_condition(self) -> bool:
        """Return True if the state is on or off."""
        has_verdict = self.value == "anomalous" and self.aggregate not in {"mean", "max"}
        return bool(self.labels or self.above or self.below or has_verdict)

    @property
    def needs_number(self) -> bool:
        """Return True if the rule cannot use a value that is a text."""
        return bool(self.above or self.below) or self.aggregate in {"mean", "max"}

    def _wrong_conditions(self) -> tuple[tuple[str, bool, str], ...]:
        text, conditions = self.value == "label", sum(map(bool, (self.labels, self.above, self.below)))
        numbers = self.aggregate in {"mean", "max"}
        return (
            ("name", not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.name), "1 to 64 letters, digits, '.', '_' or '-'"),
            (
                "value",
                not _VALUE.fullmatch(self.value),
                "label, score, score.<label>, count, count.<label>, value, value.<output> or anomalous",
            ),
            ("labels", bool(self.labels) and not text, 'absent unless value = "label"'),
            ("labels", conditions > 1, "the only condition: one of labels, above and below"),
            ("above", conditions > 1, "the only condition: one of labels, above and below"),
            ("top_k", self.top_k < 1 or (self.top_k > 1 and not self.labels), "1 or more, and 1 without labels"),
            ("top_k", self.top_k > 1 and bool(self.aggregate), "1 together with aggregate"),
            *(
                (key, not _is_hysteresis(getattr(self, key), sign) or (bool(getattr(self, key)) and text), rule)
                for key, sign, rule in (
                    ("above", 1, "[begin] or [begin, end] with end at most begin, for a value that is a number"),
                    ("below", -1, "[begin] or [begin, end] with end at least begin, for a value that is a number"),
                )
            ),
            ("aggregate", self.aggregate not in AGGREGATES, "mean, max or majority"),
            ("aggregate", numbers and text, "majority, because a label is no number"),
            ("publish", self.publish not in PUBLISH, f"one of {', '.join(PUBLISH)}"),
            (
                "publish",
                self.publish in {"enter", "leave"} and not self.is_condition,
                "change or result without a condition",
            ),
        )

    def _wrong_times(self) -> tuple[tuple[str, bool, str], ...]:
        times = ("debounce_s", "heartbeat_s", "min_interval_s")
        counts = ("aggregate_results", "debounce_results")
        return (
            *((key, not 1 <= getattr(self, key) <= RESULTS_LIMIT, f"1 to {RESULTS_LIMIT} results") for key in counts),
            *((key, not 0 <= getattr(self, key) <= SECONDS_LIMIT, f"0 to {SECONDS_LIMIT:g} seconds") for key in times),
            ("aggregate_results", self.aggregate_results > 1 and not self.aggregate, "1 without aggregate"),
            ("heartbeat_s", 0 < self.heartbeat_s < 0.1, "0, or at least 0.1 seconds"),
            ("heartbeat_s", self.heartbeat_s > 0 and self.publish == "result", '0 together with publish = "result"'),
            ("qos", self.qos not in {0, 1}, "0 or 1"),
            ("expiry_s", not 0 <= self.expiry_s <= EXPIRY_LIMIT_S, f"0 to {EXPIRY_LIMIT_S} seconds"),
        )


def _is_hysteresis(bounds: tuple[float, ...], sign: int) -> bool:
    """Return True for no bound, one, or two of which the second lies on the side where the condition ends."""
    return len(bounds) < 2 or (len(bounds) == 2 and sign * (bounds[0] - bounds[1]) >= 0)
