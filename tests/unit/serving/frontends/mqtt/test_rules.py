"""Rules: thresholds, debouncing, repetition and bounds, on values and a clock of the test."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan
from gateway.serving.frontends.mqtt.outbound.rows import ResultRow, document_rows
from gateway.serving.frontends.mqtt.outbound.rules import RouteRules
from gateway.serving.frontends.mqtt.settings.rules import RuleSettings
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples

LABELS = ("still", "walk", "run")
SECOND_NS = 10**9
NUMBER = "value"


def scored(*scores: float) -> ResultRow:
    return ResultRow(ResultPlan("y", 3, LABELS), np.array(scores, np.float32), {})


def labelled(label: str) -> ResultRow:
    return scored(*(float(each == label) for each in LABELS))


def number(value: float) -> ResultRow:
    return ResultRow(ResultPlan(), None, {"y": np.array([[value]], np.float64)})


class Played:
    """Rules that are played with results at times in seconds. `sent` has (second, sensor, state)."""

    def __init__(self, *rules: RuleSettings, max_sensors: int = 100, accepts: bool = True) -> None:
        self.counters: Counter[str] = Counter()
        self.rules = RouteRules(rules, max_sensors, self.counters)
        self.sent: list[tuple[float, str, Any]] = []
        self.accepts = accepts

    def result(self, second: float, row: ResultRow, sensor: str = "a") -> None:
        self.until(second)
        for one in self.rules.observe(sensor, row, {"sensor": sensor}, int(second * SECOND_NS)):
            self._send(one, second)

    def until(self, second: float) -> None:
        """Let the timer end as often as it does until then."""
        while (due_ns := self.rules.due_ns()) is not None and due_ns <= second * SECOND_NS:
            for one in self.rules.expire(due_ns):
                self._send(one, due_ns / SECOND_NS)

    def _send(self, one: Any, second: float) -> None:
        if self.accepts:
            self.sent.append((second, one.values["sensor"], one.values["state"]))
        one.sent(int(second * SECOND_NS), accepted=self.accepts)

    @property
    def states(self) -> list[Any]:
        return [state for _, _, state in self.sent]


def states_of(rule: RuleSettings, *rows: ResultRow) -> list[Any]:
    played = Played(rule)
    for second, row in enumerate(rows):
        played.result(second, row)
    return played.states


@pytest.mark.parametrize(
    ("more", "values", "wanted"),
    [
        ({"above": (5,)}, [4, 6, 5, 6], [False, True]),
        ({"above": (5,)}, [4, 6, 4.9, 6], [False, True, False, True]),
        ({"above": (8, 6)}, [7, 9, 7, 6, 5, 7, 8, 9], [False, True, False, True]),
        ({"below": (2, 4)}, [3, 1, 3, 4, 5, 3], [False, True, False]),
        ({"above": (-3, -5)}, [-10, -2, -4, -6], [False, True, False]),
        ({}, [1, 1, 2, 2, 1], [1, 2, 1]),
        ({"above": (5,), "publish": "enter"}, [4, 6, 4, 6, 6], [True, True]),
        ({"above": (5,), "publish": "leave"}, [4, 6, 4, 6, 6], [False]),
        ({"above": (5,), "publish": "result"}, [4, 6, 6], [False, True, True]),
        ({"above": (5,), "debounce_results": 2}, [4, 4, 6, 4, 6, 6, 6], [False, True]),
        ({"above": (5,), "debounce_s": 2}, [4, 4, 4, 6, 6, 4, 6, 6, 6], [False, True]),
        ({"aggregate": "mean", "aggregate_results": 3}, [1, 2, 3, 4], [2, 3]),
        ({"aggregate": "max", "aggregate_results": 2}, [1, 2, 1, 0], [2, 1]),
        ({"aggregate": "mean", "aggregate_results": 2, "above": (5,)}, [9, 0, 9, 9], [False, True]),
        ({"aggregate": "majority", "aggregate_results": 3}, [1, 2, 2, 1], [2]),
    ],
)
def test_numbers(more: dict[str, Any], values: list[float], wanted: list[Any]) -> None:
    assert states_of(RuleSettings("r", value=NUMBER, **more), *map(number, values)) == wanted


@pytest.mark.parametrize(
    ("more", "labels", "wanted"),
    [
        ({}, ["still", "still", "walk", "still"], ["still", "walk", "still"]),
        ({"labels": ("walk", "run")}, ["still", "walk", "run", "still"], [False, True, False]),
        ({"debounce_results": 3}, ["still"] * 3 + ["walk", "still", "walk", "walk", "walk"], ["still", "walk"]),
        (
            {"aggregate": "majority", "aggregate_results": 3},
            ["still", "walk", "still", "walk", "run"],
            ["still", "walk", "run"],
        ),
    ],
)
def test_labels(more: dict[str, Any], labels: list[str], wanted: list[Any]) -> None:
    assert states_of(RuleSettings("r", **more), *map(labelled, labels)) == wanted


def test_a_condition_on_the_best_classes() -> None:
    rule = RuleSettings("r", labels=("run",), top_k=2)
    assert states_of(rule, scored(0.5, 0.3, 0.2), scored(0.5, 0.2, 0.3)) == [False, True]


def test_scores_of_the_best_class_and_of_a_named_one() -> None:
    assert states_of(RuleSettings("r", value="score"), scored(0, 0.5, 0)) == [0.5]
    assert states_of(RuleSettings("r", value="score.run", above=(0.2,)), scored(0, 0.5, 0.25)) == [True]
    outputs = {"a": np.zeros((1, 2)), "temp.c": np.array([21.5])}
    assert states_of(RuleSettings("r", value="value.temp.c"), ResultRow(ResultPlan(), None, outputs)) == [21.5]


@pytest.mark.parametrize(
    ("value", "row"),
    [
        ("label", number(1)),
        ("score", number(1)),
        ("score.fly", scored(1, 0, 0)),
        ("value", scored(1, 0, 0)),
        ("value.z", number(1)),
        ("value", number(float("nan"))),
        ("value", number(float("inf"))),
        ("label", scored(float("nan"), 1, 0)),
        ("value", ResultRow(ResultPlan(), None, {"y": np.zeros((1, 2))})),
    ],
)
def test_a_result_without_the_value_changes_nothing_and_is_counted(value: str, row: ResultRow) -> None:
    played = Played(RuleSettings("r", value=value))
    played.result(0, row)
    assert (played.sent, played.counters["rule_values_missing"]) == ([], 1)


def verdict(anomalous: bool | None) -> ResultRow:
    document = {"score": 1.0, "threshold": 0.5, "anomalous": anomalous}
    return document_rows(ResultPlan(document="result"), [document], {})[0]


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, [False, True]),
        ({"publish": "enter"}, [True]),
        ({"debounce_results": 2}, [False]),
        ({"aggregate": "majority", "aggregate_results": 3}, [False]),
        ({"aggregate": "mean", "aggregate_results": 3}, [1 / 3]),
        ({"aggregate": "mean", "aggregate_results": 2, "above": (0.4,)}, [False, True]),
    ],
)
def test_verdicts_of_anomaly_detection(more: dict[str, Any], wanted: list[Any]) -> None:
    rule = RuleSettings("alarm", value="anomalous", **more)
    found = states_of(rule, *map(verdict, (False, None, False, True)))
    assert (found, list(map(type, found))) == (wanted, list(map(type, wanted)))
    assert rule.is_condition is not isinstance(wanted[0], float)


def test_a_result_without_a_verdict_does_not_change_it() -> None:
    assert states_of(RuleSettings("alarm", value="anomalous"), number(1.0), labelled("walk")) == []


def test_a_text_does_not_meet_a_threshold() -> None:
    text = ResultRow(ResultPlan(), None, {"y": np.array([b"hot"], object)})
    assert states_of(RuleSettings("r", value=NUMBER), text) == ["hot"]
    played = Played(RuleSettings("r", value=NUMBER, above=(1,)))
    played.result(0, text)
    assert (played.sent, played.counters["rule_values_missing"]) == ([], 1)


def test_a_heartbeat_repeats_the_state_without_results() -> None:
    played = Played(settings_with(RuleSettings("r", heartbeat_s=10), forget_s=35))
    played.result(0, labelled("walk"))
    played.result(12, labelled("walk"))
    played.result(15, labelled("run"))
    played.until(100)
    assert played.sent == [
        *((0, "a", "walk"), (10, "a", "walk")),
        *((15, "a", "run"), (25, "a", "run"), (35, "a", "run"), (45, "a", "run")),
    ]
    assert played.rules.due_ns() is None, "a sensor without results ends its heartbeat"


def test_a_heartbeat_of_a_condition_that_ended_is_silent() -> None:
    played = Played(RuleSettings("r", value=NUMBER, above=(5,), publish="enter", heartbeat_s=10))
    for second, value in ((0, 6), (25, 4)):
        played.result(second, number(value))
    played.until(100)
    assert played.sent == [(0, "a", True), (10, "a", True), (20, "a", True)]


def test_changes_wait_for_the_least_interval_and_the_last_counts() -> None:
    played = Played(RuleSettings("r", min_interval_s=10))
    for second, label in ((0, "still"), (1, "walk"), (2, "run"), (30, "walk"), (31, "run"), (32, "walk")):
        played.result(second, labelled(label))
    played.until(100)
    assert played.sent == [(0, "a", "still"), (10, "a", "run"), (30, "a", "walk")]


def test_every_result_is_published_at_most_once_in_the_least_interval() -> None:
    played = Played(RuleSettings("r", publish="result", min_interval_s=2))
    for second in range(5):
        played.result(second, labelled("walk"))
    played.until(100)
    assert [second for second, _, _ in played.sent] == [0, 2, 4]


def test_what_the_outbox_does_not_take_is_due_again_at_the_next_result() -> None:
    played = Played(RuleSettings("r", heartbeat_s=60), accepts=False)
    played.result(0, labelled("walk"))
    assert played.rules.due_ns() is None
    played.accepts = True
    played.result(1, labelled("walk"))
    assert played.sent == [(1, "a", "walk")]


def test_sensors_have_states_of_their_own_and_are_bounded() -> None:
    played = Played(RuleSettings("r", heartbeat_s=10), max_sensors=2)
    for second, sensor in enumerate("abab"):
        played.result(second, labelled("walk"), sensor)
    played.result(5, labelled("walk"), "c")
    assert [sensor for _, sensor, _ in played.sent] == ["a", "b", "c"]
    assert (len(played.rules), played.counters["rule_sensors_evicted"]) == (2, 1)
    played.until(12)
    assert [sensor for second, sensor, _ in played.sent if second > 5] == ["b"], "a was forgotten"


def test_a_sensor_that_was_silent_for_long_begins_without_state() -> None:
    rules = settings_with(RuleSettings("short"), forget_s=5), settings_with(RuleSettings("long"), forget_s=50)
    played = Played(*rules)
    for second in (0, 20, 100):
        played.result(second, labelled("walk"))
    assert [second for second, _, _ in played.sent] == [0, 0, 20, 100, 100]


drawn_rules = st.builds(
    RuleSettings,
    st.just("r"),
    value=st.just(NUMBER),
    above=st.sampled_from([(), (5.0,), (5.0, 3.0)]),
    aggregate=st.sampled_from(["mean", "max", "majority"]),
    aggregate_results=st.integers(1, 3),
    debounce_results=st.integers(1, 3),
    debounce_s=st.sampled_from([0.0, 2.0]),
    publish=st.just("change"),
    heartbeat_s=st.sampled_from([0.0, 0.5, 3.0]),
    min_interval_s=st.sampled_from([0.0, 2.5]),
)
forgetful_rules = st.builds(settings_with, drawn_rules, forget_s=st.sampled_from([4.0, 1000.0]))
events = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 8), st.integers(0, 6), st.booleans()), max_size=40)


@settings(max_examples=examples(200))
@given(forgetful_rules, events)
def test_for_any_results_the_bounds_hold(rule: RuleSettings, drawn: list[tuple[str, int, int, bool]]) -> None:
    played, second = Played(rule, max_sensors=2), 0.0
    for sensor, value, wait, accepts in drawn:
        second += wait
        played.accepts = accepts
        played.result(second, number(value), sensor)
        assert len(played.rules) <= 2
    played.accepts = True
    played.until(second + 10_000)
    assert played.rules.due_ns() is None, "nothing is due for ever"
    for sensor in "abc":
        mine = [(when, state) for when, name, state in played.sent if name == sensor]
        assert [when for when, _ in mine] == sorted(when for when, _ in mine)
        gaps = [later - earlier for (earlier, _), (later, _) in pairwise(mine)]
        if played.counters["rule_sensors_evicted"] == 0 and rule.forget_s > 500:
            assert all(gap >= rule.min_interval_s for gap in gaps)
        if not rule.heartbeat_s and rule.forget_s > 500 and not played.counters["rule_sensors_evicted"]:
            assert all(one != other for (_, one), (_, other) in pairwise(mine))


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"name": "a/b"}, "name"),
        ({"value": "who"}, "value"),
        ({"value": "score.", "above": (1.0,)}, "value"),
        ({"value": "score", "labels": ("a",)}, "labels"),
        ({"above": (1.0,)}, "above"),
        ({"value": "score", "above": (1.0, 2.0)}, "above"),
        ({"value": "score", "below": (2.0, 1.0)}, "below"),
        ({"value": "score", "above": (3.0, 2.0, 1.0)}, "above"),
        ({"value": "score", "above": (1.0,), "below": (2.0,)}, "labels"),
        ({"top_k": 2}, "top_k"),
        ({"top_k": 0, "labels": ("a",)}, "top_k"),
        ({"aggregate": "median"}, "aggregate"),
        ({"aggregate": "mean"}, "aggregate"),
        ({"aggregate_results": 3}, "aggregate_results"),
        ({"debounce_results": 0}, "debounce_results"),
        ({"publish": "enter"}, "publish"),
        ({"publish": "sometimes"}, "publish"),
        ({"qos": 2}, "qos"),
        ({"heartbeat_s": 0.01}, "heartbeat_s"),
        ({"heartbeat_s": 1.0, "publish": "result"}, "heartbeat_s"),
        ({"payload": "json"}, "template"),
    ],
)
def test_rules_that_cannot_work_are_refused(more: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        RuleSettings(**{"name": "r"} | more)
    assert refused.value.key == key
