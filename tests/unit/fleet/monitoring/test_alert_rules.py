"""Alerts that open and close: once, not for a moment, and not again and again."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.monitoring.alert_rules import AlertLimits, AlertRule, EvaluatedRules, RuleValue, evaluate_rules

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)
HOT = AlertRule(above=85.0, until=80.0, for_s=600.0, lasts_s=86_400.0)
AWAY = AlertRule(above=3600.0, until=3600.0)
SHAKY = AlertRule(above=0.5, until=0.5, lasts_s=86_400.0, calm_s=120.0)
RULES = {"temperature": HOT, "silent": AWAY, "rollback": SHAKY}


def reading(
    value: float, at_s: float = 0, *, rule: str = "temperature", device: str = "camera-1", subject: str = ""
) -> RuleValue:
    return RuleValue(rule, device, subject, value, NOW + timedelta(seconds=at_s), f"{value}", {"value": value})


class Bench:
    """State that is kept between two evaluations."""

    def __init__(self) -> None:
        self.kept: dict[str, Alert] = {}
        self.told: list[tuple[str, str, str]] = []

    def look(self, *said: RuleValue, now_s: float = 0, limit: int = 100, gone: Sequence[str] = ()) -> EvaluatedRules:
        standing = [alert for alert in self.kept.values() if alert.state is not AlertState.CLOSED]
        judged = evaluate_rules(
            standing, said, RULES, NOW + timedelta(seconds=now_s), gone=gone, limits=AlertLimits(limit, 3)
        )
        before = {key: alert.state for key, alert in self.kept.items()}
        self.kept |= {alert.key: alert for alert in judged.changed}
        for key in judged.dropped:
            del self.kept[key]
        for alert in judged.changed:
            if alert.state is not AlertState.PENDING and before.get(alert.key) is not alert.state:
                self.told.append((alert.rule, alert.device, str(alert.state)))
        return judged

    @property
    def states(self) -> list[str]:
        return [str(alert.state) for alert in self.kept.values()]


def test_it_opens_once_it_lasted_and_keeps_since_when() -> None:
    bench = Bench()
    bench.look(reading(90, 0))
    assert bench.states == ["pending"]
    bench.look(reading(90, 599))
    assert bench.told == []
    bench.look(reading(91, 600))
    (alert,) = bench.kept.values()
    assert (alert.since, alert.opened) == (NOW, NOW + timedelta(seconds=600))
    assert (alert.summary, dict(alert.evidence)) == ("91", {"value": 91})
    bench.look(reading(95, 660))
    assert bench.told == [("temperature", "camera-1", "open")]


def test_what_passes_soon_is_told_to_nobody() -> None:
    bench = Bench()
    bench.look(reading(90, 0))
    judged = bench.look(reading(70, 60))
    assert (bench.kept, bench.told, len(judged.dropped)) == ({}, [], 1)
    bench.look(reading(90, 700))
    assert bench.states == ["pending"]


def test_between_the_limits_nothing_changes() -> None:
    bench = Bench()
    bench.look(reading(90, 0))
    bench.look(reading(84, 300))
    bench.look(reading(86, 600))
    assert bench.states == ["open"]
    for second in range(700, 2000, 100):
        bench.look(reading(84 + second % 200 / 100, second))
    assert bench.told == [("temperature", "camera-1", "open")]
    bench.look(reading(80, 3000), now_s=3000)
    assert bench.states == ["closed"]
    (alert,) = bench.kept.values()
    assert alert.closed == NOW + timedelta(seconds=3000)
    assert alert.evidence == {"value": 86}


def test_the_next_time_is_another_alert() -> None:
    bench = Bench()
    bench.look(reading(4000, 0, rule="silent"))
    bench.look(reading(1, 60, rule="silent"), now_s=60)
    bench.look(reading(4000, 61, rule="silent"), now_s=61)
    assert sorted(bench.states) == ["closed", "open"]
    assert len(bench.kept) == 2


def test_what_came_and_went_between_two_looks_is_told_as_over() -> None:
    bench = Bench()
    judged = bench.look(reading(4000, 0, rule="silent"), reading(1, 60, rule="silent"), now_s=60)
    assert [alert.state for alert in judged.changed] == [AlertState.CLOSED]


def test_of_what_nothing_is_heard_is_over_after_a_while() -> None:
    bench = Bench()
    bench.look(reading(90, 0), reading(90, 600))
    bench.look(reading(90, 50_000))
    bench.look(now_s=100_000)
    assert bench.states == ["open"]
    bench.look(now_s=50_000 + 86_400)
    assert bench.states == ["closed"]
    (alert,) = bench.kept.values()
    assert "nothing was heard" in str(alert.evidence["closed_because"])


def test_hearing_of_it_again_is_not_written_every_time() -> None:
    bench = Bench()
    bench.look(reading(90, 0), reading(90, 600))
    assert bench.look(reading(90, 660)).changed == ()
    (alert,) = bench.look(reading(90, 30_000)).changed
    assert alert.heard == NOW + timedelta(seconds=30_000)


def test_a_device_that_is_gone_and_a_rule_that_is_off_close_what_they_opened() -> None:
    bench = Bench()
    bench.look(reading(4000, rule="silent"), reading(4000, rule="silent", device="camera-2"))
    bench.look(reading(4000, 60, rule="silent"), gone=["camera-1"])
    assert bench.told[2:] == [("silent", "camera-1", "closed")]
    judged = evaluate_rules(bench.kept.values(), [], {}, NOW, limits=AlertLimits(9, 9))
    assert {str(alert.evidence["closed_because"]) for alert in judged.changed} >= {"the rule is off"}


def test_a_reading_without_a_rule_says_nothing() -> None:
    assert evaluate_rules([], [reading(1e9, rule="unknown")], RULES, NOW, limits=AlertLimits(9, 9)) == EvaluatedRules()


def test_only_so_many_are_open() -> None:
    bench = Bench()
    judged = bench.look(*(reading(4000, rule="silent", device=f"d{n}") for n in range(5)), limit=3)
    assert (len(bench.kept), judged.left_out) == (3, 2)
    judged = bench.look(*(reading(4000, 1, rule="silent", device=f"d{n}") for n in range(5)), limit=3)
    assert (judged.changed, judged.left_out) == ((), 2)


def test_two_replicas_open_the_same_alert() -> None:
    one, other = Bench(), Bench()
    assert one.look(reading(9000, rule="silent")) == other.look(reading(9000, rule="silent"))


def test_what_wavers_is_one_alert_until_it_has_been_calm() -> None:
    bench = Bench()
    for second in range(0, 600, 60):
        bench.look(reading(second // 60 % 2 == 0, second, rule="rollback"), now_s=second)
    assert bench.told == [("rollback", "camera-1", "open")]
    bench.look(now_s=659)
    assert bench.states == ["open"]
    bench.look(now_s=660)
    (alert,) = bench.kept.values()
    assert (alert.state, alert.closed) == (AlertState.CLOSED, NOW + timedelta(seconds=540))


def test_what_a_flood_says_within_one_look_is_one_alert() -> None:
    bench = Bench()
    judged = bench.look(*(reading(number % 2, rule="rollback") for number in range(1_000)))
    assert len(judged.changed) == 1


def test_a_clock_that_goes_back_while_it_is_calm_does_not_keep_it_open() -> None:
    bench = Bench()
    bench.look(reading(1, 10_000, rule="rollback"), reading(0, 10_001, rule="rollback"), now_s=10_001)
    bench.look(now_s=0)
    assert bench.states == ["open"]
    bench.look(now_s=120)
    assert bench.states == ["closed"]


def test_one_device_opens_only_so_many_and_others_have_their_places() -> None:
    bench = Bench()
    lies = [reading(1, rule="rollback", subject=f"slot-{number}") for number in range(50)]
    judged = bench.look(*lies, reading(1, rule="rollback", device="camera-2"))
    assert (len(bench.kept), judged.left_out) == (4, 47)
    bench.look(reading(0, 1, rule="rollback", subject="slot-0"), now_s=121)
    bench.look(reading(1, 122, rule="rollback", subject="slot-9"), now_s=122)
    assert len([alert for alert in bench.kept.values() if alert.state is AlertState.OPEN]) == 4


STEP = st.tuples(st.sampled_from(["temperature", "silent", "rollback"]), st.sampled_from("ab"), st.floats(-1e6, 1e6))


@given(st.lists(st.tuples(st.lists(STEP, max_size=4), st.integers(-10_000, 100_000)), max_size=12))
def test_each_thing_has_one_alert_and_words_alternate(looks: list[tuple[list[tuple[str, str, float]], int]]) -> None:
    bench = Bench()
    for said, now_s in looks:
        bench.look(*(reading(value, now_s, rule=rule, device=device) for rule, device, value in said), now_s=now_s)
        standing = [(a.rule, a.device) for a in bench.kept.values() if a.state is not AlertState.CLOSED]
        assert len(standing) == len(set(standing))
        for alert in bench.kept.values():
            assert (alert.opened is None) == (alert.state is AlertState.PENDING)
            assert (alert.closed is None) == (alert.state is not AlertState.CLOSED)
    for thing in {(rule, device) for rule, device, _ in bench.told}:
        words = [word for rule, device, word in bench.told if (rule, device) == thing]
        assert all(first != second or first == "closed" for first, second in itertools.pairwise(words))
