"""The record of an update: whatever happens in whatever order, it ends, and never between two versions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.device.domain.software_update import (
    ENDS,
    REVOCABLE,
    Phase,
    SoftwareUpdate,
    UnitState,
    advanced,
    given_up,
    judged,
    read_record,
    record_bytes,
    resumed,
    watched,
)

UPDATE = SoftwareUpdate("software/edge-gateway/1.0/release", "1.0", "1.0", "a" * 64, "1.0-aaaaaaaa", "0.9-bbbbbbbb")
UNITS = ("edge-gateway.service", "edge-agent.service")
PROBATION = replace(UPDATE, phase=Phase.PROBATION, units=UNITS, confirmed=True, boot="one", since_s=100.0)


def units(*, active: bool = True, since_s: float = 101.0) -> dict[str, UnitState]:
    return dict.fromkeys(UNITS, UnitState(active, wanted=True, since_s=since_s, state="failed"))


def judge(update: SoftwareUpdate, states: dict[str, UnitState], now_s: float) -> Phase:
    return judged(update, states, now_s, within_s=900.0, steady_s=20.0).phase


@given(st.lists(st.sampled_from(["advance", "give up", "resume"]), max_size=40))
def test_every_order_of_events_keeps_to_the_table(events: list[str]) -> None:
    update, committed = UPDATE, False
    for event in events:
        if update.ended:
            break
        update = {
            "advance": lambda: advanced(update),  # noqa: B023  called at once
            "give up": lambda: given_up(update, "why"),  # noqa: B023
            "resume": lambda: resumed(update, 5),  # noqa: B023
        }[event]()
        committed = committed or update.phase is Phase.COMMIT
        assert not (committed and update.phase in {Phase.ROLL_BACK, Phase.ROLLED_BACK})
        assert bool(update.failed_in) == (update.phase in {Phase.ROLL_BACK, Phase.ROLLED_BACK})
        assert update.resumed <= 5
        assert read_record(record_bytes(update)) == update


@pytest.mark.parametrize("phase", list(Phase))
def test_each_phase_ends(phase: Phase) -> None:
    update, steps = replace(UPDATE, phase=phase), 0
    while not update.ended:
        update, steps = advanced(update), steps + 1
    assert update.phase in ENDS
    assert steps <= 5


@pytest.mark.parametrize("phase", sorted(set(Phase) - REVOCABLE, key=lambda phase: phase.value))
def test_what_is_committed_is_not_given_up(phase: Phase) -> None:
    update = replace(UPDATE, phase=phase)
    assert given_up(update, "why") == update
    assert resumed(update, 0) == update


def test_a_probation_passes_once_confirmed_and_steady() -> None:
    assert judge(PROBATION, units(), 121.0) is Phase.COMMIT
    assert judge(PROBATION, units(), 120.9) is Phase.PROBATION
    assert judge(replace(PROBATION, confirmed=False), units(), 121.0) is Phase.PROBATION
    assert judge(PROBATION, units(active=False), 121.0) is Phase.PROBATION


def test_units_that_were_not_restarted_yet_prove_nothing() -> None:
    """Just after the switch systemd still shows the processes of the old version."""
    assert judge(PROBATION, units(since_s=99.0), 200.0) is Phase.PROBATION


def test_at_the_deadline_it_says_what_was_missing() -> None:
    late = judged(replace(PROBATION, confirmed=False), units(active=False), 1000.1, within_s=900.0, steady_s=20.0)
    assert late.phase is Phase.ROLL_BACK
    assert "edge-gateway.service is failed" in late.reason
    assert "did not complete a poll" in late.reason


def test_in_another_boot_the_time_begins_at_its_start() -> None:
    assert watched(PROBATION, "one", 500.0) == PROBATION
    again = watched(PROBATION, "two", 30.0)
    assert (again.boot, again.since_s) == ("two", 0.0)
    assert judge(again, units(since_s=5.0), 30.0) is Phase.COMMIT


def test_a_record_of_a_later_installer_is_read() -> None:
    document = json.loads(record_bytes(PROBATION)) | {"something new": [1]}
    assert read_record(json.dumps(document).encode()) == PROBATION


@pytest.mark.parametrize(
    "change",
    [{"schema": 9}, {"phase": "x"}, {"release": "../x"}, {"environment": "a/b"}, {"units": None}, {"resumed": []}],
)
def test_a_damaged_record_is_a_value_error(change: dict[str, object]) -> None:
    document = json.loads(record_bytes(PROBATION)) | change
    with pytest.raises(ValueError, match=r"."):
        read_record(json.dumps(document).encode())
