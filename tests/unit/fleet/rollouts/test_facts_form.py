"""Facts and decisions as JSON: both ways, and strict."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.rollouts.decisions import Abort, Finish, MarkSilent, Offer, OpenWave, Pause, Retry, RollBack
from fleet.controller.rollouts.facts import (
    Aborted,
    Approved,
    ClockSetBack,
    Created,
    Decided,
    Fact,
    Joined,
    Left,
    Paused,
    Reported,
    Resumed,
    RollbackRequested,
    Started,
    Unattended,
    WaveApproved,
)
from fleet.controller.rollouts.facts_form import (
    DECIDED,
    DECISIONS,
    EVENTS,
    EVIDENCE_LIMIT,
    REPORTED_STATES,
    TEXT_LIMIT_CHARS,
    decision_document,
    event_document,
    fact_document,
    kind_of,
    read_event,
    read_fact,
)
from gateway.common.domain.errors import ConfigurationError

NOW = datetime(2027, 3, 1, 12, 0, 0, 250, tzinfo=UTC)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True)
texts = st.text(max_size=20)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
numbers = st.integers(0, 2**53)
evidence = st.dictionaries(
    st.text(min_size=1, max_size=8),
    texts | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False, width=32),
    max_size=4,
)
moments = st.integers(0, 4 * 10**15).map(lambda us: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us))
decisions = st.one_of(
    st.builds(OpenWave, numbers),
    st.builds(Offer, names, numbers, numbers),
    st.builds(Retry, names, numbers, numbers),
    st.builds(MarkSilent, names, texts),
    st.builds(Pause, texts, st.booleans(), evidence),
    st.builds(RollBack, names),
    st.builds(Finish),
    st.builds(Abort, texts, evidence),
)
events = st.one_of(
    st.builds(Created, names, texts),
    st.builds(Approved, texts, digests),
    st.builds(Started, texts),
    st.builds(Paused, texts, texts),
    st.builds(Resumed, texts),
    st.builds(Aborted, texts, texts),
    st.builds(WaveApproved, numbers, texts),
    st.builds(RollbackRequested, texts),
    st.builds(Joined, names, st.lists(names, max_size=3).map(tuple), texts),
    st.builds(Left, names, texts),
    st.builds(Reported, names, st.sampled_from(REPORTED_STATES), digests, numbers, texts, evidence),
    st.builds(ClockSetBack),
    st.builds(Unattended, moments),
    st.builds(Decided, decisions),
)
facts = st.builds(
    Fact,
    st.integers(1, 2**53),
    moments,
    events,
)


@given(facts)
def test_what_is_written_reads_back(fact):
    assert read_fact(json.loads(json.dumps(fact_document(fact)))) == fact
    assert read_event(event_document(fact.event)) == fact.event
    if isinstance(fact.event, Decided):
        assert decision_document(fact.event.decision).items() <= event_document(fact.event).items()


@given(events)
def test_every_event_has_the_kind_that_its_document_names(event):
    assert event_document(event)["kind"] == kind_of(event)
    assert kind_of(event) in {*EVENTS, DECIDED}


def test_every_event_and_decision_can_be_written():
    import fleet.controller.rollouts.decisions as all_decisions
    import fleet.controller.rollouts.facts as all_facts

    assert {*EVENTS.values(), Decided} == {*all_facts.Event.__args__}
    assert {*DECISIONS.values()} == {*all_decisions.Decision.__args__}


def test_times_are_written_in_utc_to_the_microsecond():
    local = NOW.astimezone(timezone(timedelta(hours=2)))
    assert fact_document(Fact(1, local, Started("ann")))["at"] == "2027-03-01T12:00:00.000250Z"


def joined(**changes):
    return {"kind": "joined", "device": "d", "accelerators": [], "zone": "", **changes}


def reported(**changes):
    document = {"device": "d", "state": "committed", "release": "a" * 64, "attempt": 1, "reason": "", "evidence": {}}
    return {"kind": "reported", **document, **changes}


REFUSED = [
    ({"kind": "dreamt"}, "kind: must be one of created"),
    ({}, "kind: missing"),
    ({"kind": "decided", "decision": "dream"}, "decision: must be one of open_wave"),
    ({"kind": "started"}, "by: missing"),
    ({"kind": "started", "by": "ann", "at": 1}, "at: unknown key"),
    ({"kind": "started", "by": "a" * (TEXT_LIMIT_CHARS + 1)}, "by: must have at most 500"),
    ({"kind": "approved", "by": "ann", "spec": "A" * 64}, "spec: must be a SHA-256 digest"),
    ({"kind": "wave_approved", "wave": -1, "by": ""}, "wave: must be between 0"),
    ({"kind": "wave_approved", "wave": True, "by": ""}, "wave: must be an integer"),
    (joined(device="../d"), "device: must be a name"),
    (joined(device=None), "device: must be a string"),
    (joined(accelerators=["a b"]), "accelerators: must be at most 64 names"),
    (joined(accelerators=["a"] * 65), "accelerators: must be at most 64 names"),
    (joined(accelerators="cpu"), "accelerators: must be an array"),
    (reported(state="silent"), "state: must be one of pending"),
    (reported(release="a" * 63), "release: must be a SHA-256 digest"),
    (reported(attempt=2**53 + 1), "attempt: must be between 0"),
    ({"kind": "unattended", "since": "2027-03-01"}, "since: must be a time in UTC"),
    (reported(evidence=[]), "evidence: must be a table"),
    (reported(evidence={str(n): n for n in range(EVIDENCE_LIMIT + 1)}), "evidence: must have at most 64"),
    (reported(evidence={"x": float("nan")}), "evidence: 'x' must be a finite number"),
    (reported(evidence={"x": 10**400}), "evidence: 'x' must be a finite number"),
    (reported(evidence={"x": True}), "evidence: 'x' must be a finite number"),
    (reported(evidence={"x": [1]}), "evidence: 'x' must be a finite number"),
    (reported(evidence={"x": "y" * 501}), "evidence: 'x' must be a finite number"),
    (reported(evidence={"": 1}), "evidence: '' must be a finite number"),
]


@pytest.mark.parametrize(("document", "problem"), REFUSED, ids=[problem for _, problem in REFUSED])
def test_what_is_no_event_is_refused_by_its_key(document, problem):
    with pytest.raises(ConfigurationError) as caught:
        read_event(document)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"seq": 0}, "seq: must be between 1"),
        ({"at": "2027-03-01T12:00:00Z"}, "at: must be a time in UTC"),
        ({"event": 3}, "event: must be a table"),
        ({"event": joined(zone=1)}, "the fact 7: zone: must be a string"),
        ({"more": 1}, "more: unknown key"),
    ],
)
def test_what_is_no_fact_is_refused_by_its_key(change, problem):
    with pytest.raises(ConfigurationError) as caught:
        read_fact({**fact_document(Fact(7, NOW, Started("ann"))), **change})
    assert problem in str(caught.value)
