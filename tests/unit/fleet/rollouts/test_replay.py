"""Recorded decisions follow from the facts before them, or the first that does not is shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from fleet.rollouts.decisions import Finish, MarkSilent, Offer, OpenWave
from fleet.rollouts.facts import Decided, Fact
from fleet.rollouts.replay import Difference, replay
from tests.simulators.rollouts import Record, offered, spec_of


def told():
    """A whole rollout of four devices: ten percent, then all; one of them silent."""
    record = Record(
        spec_of(waves=[{"percent": 10}, {"percent": 100}], success={"min_sample": 1, "min_percent": 60})
    ).start(4)
    first = offered(record.tick())
    record.report(first[0], "committed")
    second = offered(record.tick(5))
    for device in second[1:]:
        record.report(device, "committed")
    record.tick(3600)
    return record


def test_a_whole_rollout_follows_from_its_facts():
    record = told()
    found = replay(record.spec, record.facts)
    assert (found.difference, found.facts, found.decisions) == (None, len(record.facts), 8)
    assert found.state == record.state
    assert isinstance(record.facts[-1].event.decision, Finish)


def test_a_rollout_without_decisions_follows():
    assert replay(spec_of(), []).difference is None


def decided(record, kind):
    return next(
        n
        for n, fact in enumerate(record.facts)
        if isinstance(fact.event, Decided) and isinstance(fact.event.decision, kind)
    )


@pytest.mark.parametrize("kind", [OpenWave, Offer, MarkSilent, Finish])
def test_a_decision_that_was_removed_is_missed(kind):
    record = told()
    place = decided(record, kind)
    missing = record.facts[place].event.decision
    found = replay(record.spec, record.facts[:place] + record.facts[place + 1 :]).difference
    if kind is Finish:
        assert found == Difference(record.facts[place - 1].seq, None, missing)
    else:
        assert found is not None
        assert found.decided == missing


def test_a_decision_that_was_added_is_found():
    record = told()
    place = decided(record, MarkSilent)
    forged = Fact(record.facts[-1].seq + 1, record.facts[-1].at + timedelta(seconds=1), Decided(Offer("d-9", 2, 1)))
    assert replay(record.spec, [*record.facts, forged]).difference == Difference(
        forged.seq, forged.event.decision, None
    )
    assert replay(record.spec, record.facts[:place]).difference is None


@pytest.mark.parametrize("kind", [OpenWave, Offer, MarkSilent])
def test_a_decision_that_was_changed_is_found_with_what_it_should_be(kind):
    record = told()
    place = decided(record, kind)
    fact = record.facts[place]
    changed = replace(fact.event.decision, **({"wave": 7} if kind is OpenWave else {"device": "d-9"}))
    record.facts[place] = replace(fact, event=Decided(changed))
    assert replay(record.spec, record.facts).difference == Difference(fact.seq, changed, fact.event.decision)


def test_a_report_that_was_slipped_in_later_is_found():
    record = told()
    place = next(n for n, fact in enumerate(record.facts) if getattr(fact.event, "state", "") == "committed")
    record.facts[place] = replace(record.facts[place], event=replace(record.facts[place].event, state="failed"))
    found = replay(record.spec, record.facts).difference
    assert found is not None
    assert found.recorded == OpenWave(2)


def test_another_specification_does_not_lead_to_the_same_decisions():
    record = told()
    assert replay(spec_of(waves=[{"percent": 100}]), record.facts).difference is not None
