"""Recorded decisions follow from the facts before them, or the first that does not is shown."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from fleet.controller.rollouts.decide import decide
from fleet.controller.rollouts.decisions import PART_LOW, Finish, MarkSilent, Offer, OpenWave
from fleet.controller.rollouts.facts import Decided, Fact
from fleet.controller.rollouts.replay import Difference, replay
from tests.simulators.rollouts import Record, offered, spec_of


def told():
    """Return the record of a whole rollout of four devices: ten percent, then all; one of them silent."""
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


def begun(part: int) -> Record:
    """Return a wave of which only the first part is recorded."""
    record = Record(spec_of(waves=[{"percent": 100}])).start(3 * PART_LOW)
    record.add(*map(Decided, decide(record.spec, record.state, record.now, part)))
    return record


def test_a_part_of_an_answer_follows_and_what_comes_next_goes_on_with_it():
    record = begun(PART_LOW)
    assert replay(record.spec, record.facts).difference is None
    record.report(offered([fact.event.decision for fact in record.facts[-3:]])[0], "committed")
    assert len(record.tick(2)) == 2 * PART_LOW + 1
    found = replay(record.spec, record.facts)
    assert (found.difference, found.decisions) == (None, 3 * PART_LOW + 1)


def test_who_does_not_go_on_with_the_rest_is_found():
    record = begun(PART_LOW)
    whole = decide(record.spec, record.state, record.now)
    record.now += timedelta(seconds=1)
    record.add(*map(Decided, whole[1:]))
    assert replay(record.spec, record.facts).difference == Difference(len(record.facts) - len(whole) + 2, *whole[1::-1])


def test_too_small_a_part_is_an_answer_that_was_cut_off():
    record = begun(PART_LOW - 1)
    found = replay(record.spec, record.facts).difference
    assert found is not None
    assert (found.seq, found.recorded) == (record.facts[-1].seq, None)
