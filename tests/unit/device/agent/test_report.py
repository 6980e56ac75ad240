"""State of the device, in one word and a sentence: each state, and which of several goes first."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.update import Failure, Step
from gateway.common.store.active import Active
from gateway.device.agent.report.report import StatusInput, document, judged
from gateway.device.agent.state.identity import DeviceIdentity
from gateway.device.store.journal_rows import Accepted, Update

NOW = datetime(2027, 1, 1, tzinfo=UTC)
TARGET = Target("models/acme/meter/2/release", 10, "2" * 64)
OLD = Activation("meter", "models/acme/meter/1/release", "1" * 64, ("only",), (), 1)
NEW = Activation("meter", TARGET.path, TARGET.sha256, ("only",), (), 1)
ACCEPTED = Accepted(Assignment("door-1", 7, NOW, NOW + timedelta(days=1), {"meter": TARGET}), b"", "d")
UNDER_WAY = Update(NEW, Step.PROBATION, 7, NOW, NOW)
FAILED = replace(UNDER_WAY, step=Step.ROLLED_BACK, failure=Failure(Step.LOAD, "it fails", {"p50_us": 3.5}))
IN_STEP = StatusInput(DeviceIdentity("door-1", "", "", b""), Active({"meter": NEW}, {"meter": OLD}), ACCEPTED, (), ())
BEHIND = replace(IN_STEP, active=Active({"meter": OLD}))

STATES: dict[str, tuple[StatusInput, str, str]] = {
    "all is well": (IN_STEP, "in-step", "everything that is assigned is committed"),
    "never asked": (replace(IN_STEP, accepted=None), "new", "run edge-agent sync"),
    "behind": (BEHIND, "behind", "meter does not run what is assigned; run edge-agent sync"),
    "behind, because it failed": (replace(BEHIND, rejected={"meter": "it fails"}), "behind", "assigned: it fails"),
    "updating": (replace(BEHIND, updates=(UNDER_WAY,)), "updating", "meter is being updated to 2: probation"),
    "waiting": (
        replace(BEHIND, updates=(UNDER_WAY,), waiting={"meter": "no room"}),
        "waiting",
        "the update of meter cannot continue: no room",
    ),
    "refused": (replace(IN_STEP, polled={"reason": "expired", "problem": "too old"}), "refused", "too old"),
    "unreachable": (replace(IN_STEP, polled={"reason": "unreachable", "problem": "no"}), "unreachable", "no"),
    "no daemon": (replace(IN_STEP, polled={"reason": "daemon", "problem": "none"}), "unreachable", "none"),
    "the daemon refuses": (replace(IN_STEP, polled={"reason": "daemon-refuses", "problem": "no"}), "refused", "no"),
    "held by the policy": (
        replace(BEHIND, held={"meter": {"change": "install", "until": None, "why": "a blackout"}}),
        "held",
        "the install of meter is held: a blackout",
    ),
    "a failing disk": (replace(IN_STEP, polled={"reason": "store", "problem": "disk"}), "unreachable", "disk"),
}


@pytest.mark.parametrize("case", STATES)
def test_every_state_has_its_words(case: str) -> None:
    standing, state, why = STATES[case]
    found = judged(standing)
    assert found[0] == state
    assert why in found[1]


def test_the_document_of_a_failed_update() -> None:
    told = document(replace(BEHIND, finished=(FAILED,), polled={"at": "t", "reason": "", "problem": ""}))
    (entry,) = told["history"]
    assert (entry["state"], entry["version"]) == ("rolled_back", "2")
    assert entry["failure"] == {"step": "load", "reason": "it fails", "evidence": {"p50_us": 3.5}}
    slot: dict[str, Any] = told["slots"]["meter"]
    assert (slot["assigned"], slot["committed"]["version"], slot["update"]) == (TARGET.path, "1", None)
    assert told["assignment"]["version"] == 7


def test_slots_that_are_assigned_committed_or_under_way_are_all_told_of() -> None:
    other = replace(UNDER_WAY, activation=replace(NEW, slot="coming"))
    standing = replace(IN_STEP, active=Active({"kept": replace(OLD, slot="kept")}), updates=(other,))
    assert list(document(standing)["slots"]) == ["coming", "kept", "meter"]


def test_a_device_of_which_nothing_is_known_yet() -> None:
    told = document(StatusInput(IN_STEP.identity, Active(), None, (), ()))
    assert (told["state"], told["assignment"], told["slots"], told["last_poll"]) == ("new", None, {}, None)
