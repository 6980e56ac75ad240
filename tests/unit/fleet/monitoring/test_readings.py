"""Values of telemetry for alert rules; whatever a device says, it is read or passed over."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.database.ingestion import Row
from fleet.controller.database.tail import ReceivedRow
from fleet.controller.monitoring import readings
from fleet.controller.monitoring.readings import rule_values, rules
from fleet.controller.monitoring.settings import AlertSettings
from fleet.controller.monitoring.slot_samples import Samples, SlotSample
from gateway.common.domain.errors import ConfigurationError

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


def heard(stream: str, document: Any, *, at_s: float = 0, device: str = "camera-1") -> ReceivedRow:
    return ReceivedRow(device, stream, 1, NOW, Row(1, NOW + timedelta(seconds=at_s), "x", document))


def values(*rows: ReceivedRow, samples: Samples | None = None) -> dict[tuple[str, str, str], float]:
    return {
        reading.key: reading.value for reading in rule_values(rows, Samples(100, 1000) if samples is None else samples)
    }


def counters(requests: Any, failed: Any, version: str = "1") -> ReceivedRow:
    return heard("statistics", {"model": "m", "version": version, "requests": requests, "failed_runs": failed})


def test_the_hottest_zone_counts() -> None:
    found = list(
        rule_values([heard("vitals", {"temperatures_c": {"cpu": 61.5, "gpu": 88.0, "odd": "x"}})], Samples(1, 1))
    )
    (hot,) = [reading for reading in found if reading.rule == "temperature"]
    assert (hot.value, hot.at) == (88.0, NOW)
    assert hot.evidence == {"zone": "gpu", "celsius": 88.0}
    assert "88.0 °C in gpu" in hot.summary


def test_a_clock_that_is_ahead_is_told_one_that_is_behind_may_be_a_device_that_was_away() -> None:
    assert values(heard("vitals", {}, at_s=400)) == {("clock", "camera-1", ""): 400.0}
    assert values(heard("vitals", {}, at_s=-90_000)) == {("clock", "camera-1", ""): 0.0}


def test_a_share_of_failed_runs_needs_a_sample() -> None:
    samples = Samples(100, 1000)
    assert values(counters(1_000, 900), samples=samples) == {}  # earlier values are unknown
    assert values(counters(1_050, 925), counters(1_099, 949), samples=samples) == {}
    assert values(counters(1_100, 950), samples=samples) == {("errors", "camera-1", "m"): 50.0}
    assert values(counters(1_150, 950), samples=samples) == {}
    assert values(counters(1_200, 950), samples=samples) == {("errors", "camera-1", "m"): 0.0}


def test_versions_of_a_slot_count_together_and_a_restart_of_the_daemon_begins_at_nothing() -> None:
    samples = Samples(100, 1000)
    for row in (counters(500, 0), counters(0, 0, "2"), counters(560, 0)):
        assert values(row, samples=samples) == {}
    assert values(counters(40, 10, "2"), samples=samples) == {("errors", "camera-1", "m"): 10.0}
    assert values(counters(100, 30), samples=samples) == {("errors", "camera-1", "m"): 30.0}


def test_runs_that_failed_before_they_counted_as_requests() -> None:
    assert SlotSample(0, 5).percent == 100.0
    assert SlotSample(0, 0).percent == 0.0


def test_what_is_remembered_of_counters_is_bounded() -> None:
    samples = Samples(1, 10)
    for number in range(100):
        samples.take(f"d{number}", "m", "1", (1, 0))
    assert len(samples) == 10


def test_no_device_makes_another_be_forgotten() -> None:
    samples = Samples(10, 100)
    samples.take("honest", "m", "1", (100, 0))
    for number in range(10_000):
        samples.take("liar", f"slot-{number}", "1", (number, number))
    assert samples.take("honest", "m", "1", (110, 5)) == SlotSample(10, 5)


def test_an_update_that_was_given_up_comes_with_its_evidence() -> None:
    failure = {"step": "probation", "reason": "latency", "evidence": {"p99_us": 9000, "limit": "x", "nested": {"a": 1}}}
    said = {"slot": "m", "state": "rolled_back", "target": "models/a/m/2/release", "version": "2", "failure": failure}
    (reading,) = rule_values([heard("updates", said)], Samples(1, 1))
    assert (reading.key, reading.value) == (("rollback", "camera-1", "m"), 1.0)
    assert reading.summary == "camera-1 gave up m 2: latency"
    assert reading.evidence == {
        "state": "rolled_back",
        "target": "models/a/m/2/release",
        "version": "2",
        "step": "probation",
        "reason": "latency",
        "evidence_p99_us": 9000.0,
        "evidence_limit": "x",
    }
    committed = {"slot": "m", "state": "committed", "version": "3", "failure": None}
    assert values(heard("updates", committed)) == {("rollback", "camera-1", "m"): 0.0}


@pytest.mark.parametrize("document", [{}, {"slot": "m"}, {"slot": 7, "state": "failed"}, {"slot": "m", "state": "odd"}])
def test_updates_that_say_nothing_are_passed_over(document: dict[str, Any]) -> None:
    assert values(heard("updates", document)) == {}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["temperatures_c", "slot", "state", "failure", "model", "version", "requests", "failed_runs", "evidence"]
NAMES += ["held", "change", "why", "committed", "target"]
SAID = st.dictionaries(st.sampled_from(NAMES), JSON | st.sampled_from(["failed", "m", "withdraw"])) | JSON


@given(st.sampled_from(["vitals", "statistics", "updates", "state"]), st.lists(SAID, max_size=4))
def test_a_device_may_say_anything(stream: str, documents: list[Any]) -> None:
    found = list(rule_values([heard(stream, document) for document in documents], Samples(1, 10)))
    for reading in found:
        assert math.isfinite(reading.value)
        assert len(reading.summary) < 1_000
        assert "\0" not in reading.subject + reading.summary


def test_every_rule_can_be_turned_off() -> None:
    assert set(rules(AlertSettings())) == set(readings.RULES)
    limits = dict.fromkeys(("silent_s", "error_percent", "temperature_c", "identity_s", "clock_s"), 0.0)
    flags = dict.fromkeys(("rollback", "halted", "barred", "removal"), False)
    assert rules(AlertSettings(certificate_d=0, repository_d=0, **limits, **flags)) == {}


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a:b@c/", "http://a/#b", "http://a:99999/", "webhook"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"alerts\.url: must be http"):
        AlertSettings(url=url)
