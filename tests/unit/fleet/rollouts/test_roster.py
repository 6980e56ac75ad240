"""A table of members that never changes, and cheap copies of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.rollouts.roster import BUCKETS, Changes, Roster
from fleet.controller.rollouts.state import Member

devices = st.text(max_size=12)


def members(names: list[str], attempt: int = 0) -> dict[str, Member]:
    return {name: Member(name, len(name), attempt=attempt) for name in names}


@given(st.lists(devices, max_size=40), st.lists(devices, max_size=40))
def test_it_is_as_a_dictionary_and_what_it_was_made_of_stays(before: list[str], after: list[str]) -> None:
    first = Changes(members(before)).roster()
    changes = Changes(first)
    for member in members(after, attempt=1).values():
        changes.put(member)
    second, true = changes.roster(), members(before) | members(after, attempt=1)
    assert (first, second) == (members(before), true)
    assert dict(second.items()) == true
    assert {member.device: member for member in second.values()} == true
    assert (len(second), len(second.values()), set(second)) == (len(true), len(true), set(true))
    assert [member.device for member in second.values()] == list(second)
    for name in [*before, *after, "nobody"]:
        assert (second.get(name), changes.get(name), name in second) == (true.get(name), true.get(name), name in true)
    assert sorted(changes.members(), key=lambda m: m.device) == sorted(true.values(), key=lambda m: m.device)


def test_what_did_not_change_is_shared() -> None:
    first = Changes(members([f"device-{number}" for number in range(5000)])).roster()
    changes = Changes(first)
    changes.put(Member("device-7", 0, attempt=3))
    second = changes.roster()
    shared = [ours is theirs for ours, theirs in zip(first.buckets, second.buckets, strict=True)]
    assert shared.count(False) == 1
    assert (first["device-7"].attempt, second["device-7"].attempt) == (0, 3)
    assert len({len(bucket) > 0 for bucket in first.buckets}) == 1, "spread over all buckets"
    assert len(first.buckets) == BUCKETS


def test_an_empty_one_has_nobody() -> None:
    assert (len(Roster()), list(Roster().values()), Roster()) == (0, [], {})
