"""A simulated device decides as a real one would, and speaks the agent's language."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.assignment import RESERVED_SLOTS, Assignment, Target
from tests.load.casting import HARDWARE, Behaviour, Character
from tests.load.device import ELSE, SimulatedDevice
from tests.simulators.enrolled_device import SLOT as REAL_SLOT
from tests.simulators.enrolled_device import Device as RealDevice
from tests.simulators.enrolled_device import enrolled_device

NOW = datetime(2027, 1, 1, tzinfo=UTC)
SLOT = "meter-reader"


def target(version: str) -> Target:
    return Target(f"models/acme/{SLOT}/{version}/release", 900, version.zfill(2) * 32)


def assignment(*targets: Target, version: int = 1, attempts: Mapping[str, int] | None = None) -> Assignment:
    extra = {"attempts": dict(attempts)} if attempts else {}
    slots = {SLOT: targets[0]} if targets else {}
    return Assignment("camera", version, NOW, NOW + timedelta(days=1), slots, extra=extra)


def device(part: Behaviour = Behaviour.HONEST) -> SimulatedDevice:
    made = SimulatedDevice(Character(0, "camera", part, HARDWARE[2]), 1)
    made.name = "camera"
    return made


def told(made: SimulatedDevice, stream: str) -> list[dict[str, Any]]:
    rows = [json.loads(record.line) for record in made.spool.batch(1000)]
    return [row["document"] for row in rows if row["stream"] == stream]


def updated(made: SimulatedDevice, given: Assignment) -> SimulatedDevice:
    made.believe(given, b"content", "etag", NOW)
    for slot in made.due():
        for state in ("downloading", "probation", made.verdict):
            made.step(slot, state, NOW)
    return made


def slots(made: SimulatedDevice) -> list[dict[str, Any]]:
    return [document for document in told(made, "state") if "slot" in document]


def test_an_update_is_told_step_by_step_and_its_end_as_evidence() -> None:
    made = updated(device(), assignment(target("2"), attempts={SLOT: 1}))
    assert [document["state"] for document in slots(made)] == ["downloading", "probation", "committed"]
    last, (ended,) = slots(made)[-1], told(made, "updates")
    assert last["committed"]["release"] == last["release"] == ended["release"] == target("2").sha256
    assert (last["attempt"], ended["attempt"], ended["failure"]) == (1, 1, None)
    assert made.due() == ()


def test_the_same_assignment_again_changes_nothing() -> None:
    made = updated(device(), assignment(target("2"), attempts={SLOT: 1}))
    count = len(made.spool)
    updated(made, assignment(target("2"), version=2, attempts={SLOT: 1}))
    made.tell_state(NOW)
    assert slots(made)[3:] == [], "another version alone is no news"
    assert len(made.spool) == count


@pytest.mark.parametrize("slot", sorted(RESERVED_SLOTS))
def test_a_reserved_slot_is_told_like_others_serves_nothing_and_is_not_removed(slot: str) -> None:
    release = Target(f"{slot.removeprefix('@')}/x/1/release", 900, "ab" * 32)
    made = updated(device(), replace(assignment(), slots={slot: release}))
    last = slots(made)[-1]
    assert (last["slot"], last["state"], last["committed"]["version"], last["serving"]) == (slot, "committed", "1", [])
    made.tell_numbers(NOW)
    assert told(made, "statistics") == []
    updated(made, replace(assignment(version=2), extra={"removed": [slot]}))
    assert slots(made)[-1]["state"] == "committed"


def test_a_liar_names_another_digest() -> None:
    made = updated(device(Behaviour.LYING), assignment(target("2")))
    last, (ended,) = slots(made)[-1], told(made, "updates")
    assert last["state"] == ended["state"] == "committed"
    assert last["release"] == target("2").sha256
    assert last["committed"]["release"] == ended["release"] == ELSE


def test_who_failed_tries_again_only_at_a_greater_attempt() -> None:
    made = updated(device(Behaviour.FAILING), assignment(target("2"), attempts={SLOT: 1}))
    assert slots(made)[-1]["rejected"]
    assert told(made, "updates")[0]["failure"]["evidence"]
    updated(made, assignment(target("2"), version=2, attempts={SLOT: 1}))
    assert len(told(made, "updates")) == 1
    updated(made, assignment(target("2"), version=3, attempts={SLOT: 2}))
    assert [ended["attempt"] for ended in told(made, "updates")] == [1, 2]
    updated(made, assignment(target("3"), version=4))
    assert told(made, "updates")[2]["target"] == target("3").path


def test_back_to_what_is_committed_needs_no_update_and_what_is_withdrawn_is_gone() -> None:
    made = updated(device(), assignment(target("1")))
    made.believe(assignment(target("2"), version=2), b"", "", NOW)
    assert made.due() == (SLOT,)
    made.believe(assignment(target("1"), version=3), b"", "", NOW)
    assert made.due() == ()
    made.believe(assignment(version=4), b"", "", NOW)
    assert list(made.slots) == [SLOT]
    made.believe(replace(assignment(version=5), extra={"removed": [SLOT]}), b"", "", NOW)
    assert slots(made)[-1] == {"slot": SLOT, "state": "gone"}


def test_what_ran_before_goes_on() -> None:
    made = device()
    made.restore({SLOT: [target("1").path, 900, target("1").sha256]}, NOW)
    assert updated(made, assignment(target("1"))).due() == ()
    made.tell_state(NOW)
    assert slots(made)[-1]["state"] == "committed"


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealDevice]:
    with enrolled_device(tmp_path, monkeypatch) as made:
        yield made


def test_its_documents_have_the_keys_of_the_agents(real: RealDevice) -> None:
    real.update("1")
    real.control.serve(REAL_SLOT, "1")
    real.control.counters = {"1": {"version": "1", "requests": 7}}
    assert real.report() == ""
    made = updated(device(), assignment(target("2"), attempts={SLOT: 1}))
    made.tell_numbers(NOW)
    for stream in ("state", "updates"):
        theirs = {frozenset(row["document"]) for row in real.told.of(stream)}
        ours = {frozenset(document) for document in told(made, stream)}
        assert ours == theirs, stream
    envelope = {frozenset(row) for stream in ("state", "vitals") for row in real.told.of(stream)}
    assert {frozenset(json.loads(record.line)) for record in made.spool.batch(99)} == envelope
    classes = {row["stream"]: row["class"] for stream in ("state", "updates", "vitals") for row in real.told.of(stream)}
    mine = {row["stream"]: row["class"] for row in (json.loads(record.line) for record in made.spool.batch(99))}
    assert classes.items() <= mine.items()
