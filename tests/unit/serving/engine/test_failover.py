"""Record of failed candidates: when one is out, until when, and what ends that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.retry import SECOND_NS as S
from gateway.serving.engine.breaker import NEVER_NS
from gateway.serving.engine.failover import PROBATION_WAITS, SETTLE_NS, CandidateKey, Failover
from gateway.serving.engine.settings import FailoverSettings

CHIP = CandidateKey("m", "1", ("chip", "hailo-8", ""))
OTHER = CandidateKey("other", "1", ("chip", "hailo-8", ""))
HOST = CandidateKey("m", "1", ("host", "cpu", ""))


def test_failures_within_the_window_put_a_rung_out_and_older_ones_do_not_count() -> None:
    failover = Failover(FailoverSettings(failures=3, window_s=60.0, retry_s=30.0))
    assert not failover.failed(CHIP, "x", 100 * S)
    assert not failover.failed(CHIP, "x", 159 * S)
    assert not failover.failed(CHIP, "x", 161 * S), "the window has begun again"
    assert failover.obstacle(CHIP) == ""
    assert not failover.failed(CHIP, "x", 162 * S)
    assert failover.failed(CHIP, "broken", 163 * S)
    assert failover.obstacle(CHIP) == "broken"
    assert not failover.failed(CHIP, "x", 164 * S), "it is out already"
    assert failover.next() == (193 * S, CHIP)


def test_each_failed_trial_doubles_the_wait_and_a_failure_on_probation_too() -> None:
    failover, now, waits = Failover(FailoverSettings(retry_s=30.0)), 100 * S, []
    failover.failed(CHIP, "x", now, at_once=True)
    for _ in range(9):
        due, key = failover.next()
        assert key == CHIP
        waits.append((due - now) // S)
        now = due
        failover.failed_again(CHIP, "no answer", now)
    assert waits == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]
    failover.tried(CHIP, now)
    assert failover.obstacle(CHIP) == ""
    assert failover.failed(CHIP, "x", now + S), "one failure on probation is enough"
    assert failover.next()[0] - (now + S) == 3600 * S


def test_what_is_put_off_waits_as_long_as_before() -> None:
    failover = Failover(FailoverSettings(retry_s=30.0))
    failover.failed(CHIP, "x", 100 * S, at_once=True)
    for now in (130 * S, 160 * S, 190 * S):
        failover.tried(CHIP, now)
        failover.put_off(CHIP, now)
        assert failover.obstacle(CHIP) == "x"
        assert failover.next() == (now + 30 * S, CHIP)


def test_after_probation_the_failures_are_forgotten() -> None:
    failover = Failover(FailoverSettings(failures=2, window_s=60.0, retry_s=30.0))
    failover.failed(CHIP, "x", 100 * S, at_once=True)
    failover.tried(CHIP, 130 * S)
    healthy_ns = (130 + 30 * PROBATION_WAITS + 1) * S
    assert not failover.failed(CHIP, "x", healthy_ns)
    assert failover.failed(CHIP, "x", healthy_ns + S)
    assert failover.next()[0] == healthy_ns + 31 * S, "the first wait again"


def test_a_flapping_device_fails_over_a_bounded_number_of_times_an_hour() -> None:
    failover, now, count = Failover(FailoverSettings(retry_s=30.0)), 0, 0
    while now < 3600 * S:
        failover.failed(CHIP, "x", now, at_once=True)
        count += 1
        now = failover.next()[0]
        failover.tried(CHIP, now)
        now += S
    assert count == 7


def test_a_device_that_is_gone_takes_all_its_records_out_and_is_tried_soon_after_its_return() -> None:
    failover = Failover(FailoverSettings(retry_s=30.0))
    failover.failed(CHIP, "x", 100 * S, at_once=True)
    failover.leave("hailo-8", "/dev/hailo0")
    assert failover.obstacle(OTHER) == failover.obstacle(CHIP) == "hailo-8 at /dev/hailo0 is gone"
    assert failover.obstacle(HOST) == ""
    assert failover.next() == (NEVER_NS, None)
    assert "tried again when it is back" in failover.degraded("m", "1", 0.0)
    failover.returned("hailo-8", 110 * S)
    assert failover.obstacle(OTHER) == ""
    assert failover.next() == (110 * S + SETTLE_NS, CHIP)
    failover.failed_again(CHIP, "x", 112 * S)
    failover.leave("hailo-8", "/dev/hailo0")
    failover.returned("hailo-8", 113 * S)
    assert failover.next() == ((112 + 60) * S, CHIP), "a cable that comes and goes does not shorten a longer wait"


def test_a_barred_rung_waits_for_a_load_by_hand() -> None:
    failover = Failover()
    failover.failed(CHIP, "it hangs", S, at_once=True, barred=True)
    assert failover.next() == (NEVER_NS, None)
    assert "after a load of the model" in failover.degraded("m", "1", 0.0)
    failover.forget("m", "1")
    assert failover.obstacle(CHIP) == failover.degraded("m", "1", 0.0) == ""


def test_what_is_degraded_names_the_rung_the_reason_and_the_time() -> None:
    failover = Failover(FailoverSettings(retry_s=30.0))
    failover.failed(CHIP, "status 26", 100 * S, at_once=True)
    said = failover.degraded("m", "1", 1_700_000_000.0)
    assert said == "chip on hailo-8 is out: status 26; tried again at 2023-11-14T22:15:30+00:00"
    assert failover.degraded("m", "2", 0.0) == ""


@pytest.mark.parametrize("key", ["failures", "window_s", "retry_s"])
def test_settings_without_a_meaning_are_refused(key: str) -> None:
    with pytest.raises(ConfigurationError, match="above 0"):
        replace(FailoverSettings(), **{key: 0})
