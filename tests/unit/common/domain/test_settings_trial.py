"""Trials of settings: whether they begin, and whether they end well."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gateway.common.domain.assignment import Target
from gateway.common.domain.settings_trial import (
    DaemonHealth,
    SettingsTrialSettings,
    evaluate_trial,
    health_document,
    read_health,
    wants_trial,
)
from gateway.common.domain.update import Tried

TARGET = Target("settings/berlin/3/release", 100, "ab" * 32)
BEFORE = DaemonHealth("one", frozenset({"meter/1", "door/2"}), broker=True, requests=100, failed=10)
SETTINGS = SettingsTrialSettings(duration_s=60.0, ready_s=120.0)
WELL = DaemonHealth("two", BEFORE.ready, broker=True, requests=50, failed=0)


@pytest.mark.parametrize(
    ("committed", "tried", "attempt", "wanted"),
    [
        ("", None, 1, True),
        (TARGET.sha256, None, 1, False),
        ("cd" * 32, Tried(TARGET.sha256, 1), 1, False),
        ("cd" * 32, Tried(TARGET.sha256, 1), 2, True),
        ("cd" * 32, Tried("ef" * 32, 9), 1, True),
    ],
)
def test_what_is_tried(committed: str, tried: Tried | None, attempt: int, wanted: bool) -> None:
    assert wants_trial(TARGET, attempt, committed, tried) is wanted
    assert not wants_trial(None, attempt, committed, tried)


@pytest.mark.parametrize(
    ("now", "ready_for_s", "elapsed_s", "passed", "reason"),
    [
        (WELL, 61.0, 70.0, True, "50 requests, of which 0 failed"),
        (WELL, 59.0, 70.0, None, "on trial"),
        (replace(WELL, ready=frozenset({"door/2"})), None, 70.0, None, "meter/1 does not answer"),
        (replace(WELL, ready=frozenset({"door/2"})), None, 121.0, False, "meter/1 does not answer"),
        (replace(WELL, broker=False), None, 121.0, False, "the broker is not connected"),
        (replace(WELL, broker=None), None, 121.0, False, "the broker is not connected"),
        (BEFORE, None, 121.0, False, "did not restart"),
        (replace(WELL, failed=7), 61.0, 70.0, True, "7 failed"),
        (replace(WELL, failed=8), 3.0, 10.0, False, "8 of 50 requests failed; before them 10.0 %"),
        (replace(WELL, requests=19, failed=19), 3.0, 10.0, None, "on trial"),
        (replace(WELL, ready=BEFORE.ready | {"new/1"}, requests=0), 61.0, 70.0, True, "0 requests"),
    ],
)
def test_how_a_trial_is_judged(
    now: DaemonHealth, ready_for_s: float | None, elapsed_s: float, passed: bool | None, reason: str
) -> None:
    judged = evaluate_trial(BEFORE, now, ready_for_s, elapsed_s, SETTINGS)
    assert judged.passed is passed
    assert reason in judged.reason


def test_health_is_kept_as_it_is() -> None:
    for health in (BEFORE, DaemonHealth(), replace(WELL, broker=None)):
        assert read_health(json.loads(json.dumps(health_document(health)))) == health
