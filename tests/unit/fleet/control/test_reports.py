"""Reports of devices on their slots, as values: what is believed of them, and that nothing of them spoils a record."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.control.reports import Made, health, reported, slot_report, update_event
from fleet.controller.database.columns import document_text
from fleet.controller.database.ingestion import Row
from fleet.controller.database.tables import FACT_BYTES, HEALTH_BYTES, NAME_BYTES, PATH_BYTES
from fleet.controller.rollouts.facts import Reported
from fleet.controller.rollouts.facts_form import event_document, read_event
from tests.simulators.databases import NOW

A, B = "a" * 64, "b" * 64
WORDS = ["committed", "rolled_back", "pending", "offered", "gone", A, "x\0y", "ü" * 600, "m" * 600]
texts = st.text(max_size=12) | st.sampled_from(WORDS)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3))
KEYS = ["slot", "state", "target", "release", "attempt", "committed", "serving", "held", "rejected", "waits_for"]
KEYS += ["failure", "version", "key", "step", "began", "changed", "why", "problem", "versions", "profile"]
documents = st.dictionaries(st.sampled_from(KEYS), values, max_size=12)
COMMITTED = {"target": "models/acme/meter/2/release", "version": "2", "release": A, "variants": ["int8"]}
SLOT = {
    "slot": "meter",
    "state": "committed",
    "target": COMMITTED["target"],
    "release": A,
    "assignment": 7,
    "attempt": 2,
    "committed": COMMITTED,
    "serving": [{"version": "2", "variant": "int8", "accelerator": "hailo-8", "state": "READY"}],
}


@given(documents)
def test_whatever_a_device_says_is_kept_in_bounds(document) -> None:
    document_text(document, 10**9)
    said = reported("camera-1", document)
    if said:
        assert read_event(event_document(said.report)) == said.report
        document_text(event_document(said.report), FACT_BYTES)
    slot = slot_report("camera-1", document, NOW)
    if slot and slot.running:
        sizes = [len(getattr(slot.running, name).encode()) for name in ("slot", "variant", "accelerator", "state")]
        assert max(sizes) <= NAME_BYTES
        assert len(slot.running.target.encode()) <= PATH_BYTES
        assert "\0" not in slot.running.target
    event = update_event("camera-1", Row(1, NOW, "update", document))
    if event:
        document_text(event.document, FACT_BYTES)
        assert "\0" not in event.target
    how = health(document)
    if how:
        document_text(how.details, HEALTH_BYTES)


def test_a_slot_that_is_done() -> None:
    found = slot_report("camera-1", SLOT, NOW)
    assert found
    assert found.made == Made(Reported("camera-1", "committed", A, 2), 7)
    running = found.running
    assert running
    assert (running.target, running.digest) == (COMMITTED["target"], A)
    assert (running.variant, running.accelerator, running.state) == ("int8", "hailo-8", "committed")


def test_who_is_done_with_something_else_is_taken_at_that() -> None:
    liar = SLOT | {"committed": COMMITTED | {"release": B}}
    assert reported("camera-1", liar) == Made(Reported("camera-1", "committed", B, 2), 7)
    busy = SLOT | {"state": "probation", "committed": COMMITTED | {"release": B}}
    assert reported("camera-1", busy) == Made(Reported("camera-1", "probation", A, 2), 7)


def test_what_the_policy_holds_was_offered() -> None:
    held = SLOT | {"state": "pending", "held": {"change": "install", "why": "its turn is hour 3"}}
    assert reported("camera-1", held) == Made(Reported("camera-1", "pending", A, 2, "its turn is hour 3"), 7)


def test_a_slot_that_is_gone_runs_nothing() -> None:
    found = slot_report("camera-1", {"slot": "meter", "state": "gone"}, NOW)
    assert found
    assert (found.slot, found.running, found.made) == ("meter", None, None)


def test_the_end_of_an_update_carries_its_evidence() -> None:
    failure = {"step": "probation", "reason": "failed\nruns", "evidence": {"failed_runs": 7, "p99_us": 1.5, "x": [1]}}
    ended = {
        "key": A,
        "slot": "meter",
        "target": COMMITTED["target"],
        "version": "2",
        "release": A,
        "state": "rolled_back",
        "attempt": 1,
        "step": "rolled-back",
        "began": "2026-03-01T12:00:00+00:00",
        "failure": failure,
    }
    said = reported("camera-1", ended)
    assert said == Made(Reported("camera-1", "rolled_back", A, 1, "failed runs", {"failed_runs": 7, "p99_us": 1.5}))
    event = update_event("camera-1", Row(1, NOW, "update", ended))
    assert event
    assert (event.kind, event.key, event.slot, event.target) == ("rollback", A, "meter", COMMITTED["target"])
    assert event.document["evidence"] == {"failed_runs": 7, "p99_us": 1.5}
    assert event.document["began"] == "2026-03-01T12:00:00+00:00"
    assert json.dumps(event.document)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "flying"},
        {"state": ["committed"]},
        {"state": None},
        {"release": "A" * 64, "committed": None},
        {"release": None, "committed": None},
        {"committed": {"release": 7}, "release": 7},
    ],
)
def test_what_says_nothing_is_no_report(changes) -> None:
    assert reported("camera-1", SLOT | changes) is None


@pytest.mark.parametrize("attempt", [True, -1, 1.0, 2**53, "1", None])
def test_an_attempt_that_is_none_counts_as_not_said(attempt) -> None:
    found = reported("camera-1", SLOT | {"attempt": attempt})
    assert found
    assert found.report.attempt == 0
