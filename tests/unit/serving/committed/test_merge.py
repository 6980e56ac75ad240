"""Merge of signed releases with those given by hand: one table of cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.common.domain.release import Release
from gateway.serving.committed.merge import merge_releases
from gateway.serving.committed.store import Committed, CommittedSlot
from tests.simulators.engine_rig import manifest


def release(name: str, version: str = "1", problem: str = "", *, signed: bool = False) -> Release:
    digest = "" if problem else f"{name} {version}"
    made = None if problem else manifest(name, version)
    return Release(name, version, Path("/x"), digest, manifest=made, problem=problem, signed=signed)


def slot(version: str = "2", problem: str = "", previous: str = "") -> CommittedSlot:
    before = release("meter", previous, signed=True) if previous else None
    return CommittedSlot(release("meter", version, problem, signed=True), before)


def committed(one: CommittedSlot) -> Committed:
    return Committed({"meter": one})


def named(releases: tuple[Release, ...]) -> list[str]:
    return [f"{one.name} {one.version}" + (" refused" if one.problem else "") for one in releases]


HAND = (release("lamp"), release("meter", "9"), release("torn", problem="broken"))


def test_without_a_fleet_everything_by_hand_is_admitted_as_it_is() -> None:
    found = merge_releases(Committed(), HAND, unsigned=True)
    assert found.every == HAND
    assert found.unlisted == ()


def test_the_name_of_a_slot_is_the_fleets() -> None:
    found = merge_releases(committed(slot()), HAND, unsigned=True)
    assert named(found.signed) == ["meter 2"]
    assert named(found.admitted) == ["lamp 1", "torn 1 refused"]
    (denied,) = found.denied
    assert (denied.name, denied.version, denied.manifest) == ("meter", "9", None)
    assert "give it another name" in denied.problem


def test_the_same_version_by_hand_has_no_line_and_is_told() -> None:
    found = merge_releases(committed(slot("9")), HAND, unsigned=True)
    assert found.denied == ()
    assert "meter 9 in the model directory" in found.unlisted[0]


def test_forbidden_keeps_its_own_problem_where_it_has_one() -> None:
    found = merge_releases(committed(slot()), HAND, unsigned=False)
    assert named(found.admitted) == ["torn 1 refused"]
    assert [one.problem.partition(":")[0] for one in found.denied] == [
        "unsigned",
        "unsigned, and the fleet serves a signed model of this name here; give it another name",
    ]


@pytest.mark.parametrize(
    ("one", "serving", "expected"),
    [
        (slot("2", "torn", "1"), (), ["meter 2 refused", "meter 1"]),
        (slot("2", "torn", "1"), [("meter", "2")], ["meter 2 refused"]),
        (slot("2", "torn", "1"), [("meter", "1")], ["meter 2 refused", "meter 1"]),
        (slot("2", "torn"), (), ["meter 2 refused"]),
        (slot("2", "torn", "2"), (), ["meter 2"]),
        (slot("2"), (), ["meter 2"]),
    ],
)
def test_the_previous_release_steps_in(one: CommittedSlot, serving: list[tuple[str, str]], expected: list[str]) -> None:
    found = merge_releases(committed(one), (), unsigned=True, serving=serving)
    assert named(found.signed) == expected
    told = [release.problem for release in found.signed if release.problem]
    assert all(("version 1, serves instead" in problem) is ("meter 1" in expected) for problem in told)
    assert bool(found.unlisted) is (expected == ["meter 2"] and bool(one.release.problem))
