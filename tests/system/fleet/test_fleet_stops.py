"""Power cut, or a kill, at any system call of `edge-fleet publish`: clients go on, and publishing again ends it."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.simulators import disk
from tests.simulators.power import Life, Power, power
from tests.simulators.publish_cut import NEW, OLD, PUBLISHED

SCENARIO = "tests.simulators.publish_cut"
SEED = 4
SAMPLE = 6
"""Cuts per file system in `make test`."""
ENOUGH_BYTES = 1_000_000
"""More than what is published takes, with its blocks."""
CROWDED = 10


@pytest.fixture(scope="module", params=sorted(disk.SIZES_BYTES))
def machine(request: pytest.FixtureRequest) -> Iterator[Power]:
    """Yield a publisher that is about to publish, on each kind of file system."""
    with power(SCENARIO, request.param) as started:
        yield started


def judge(life: Life, whole: Life) -> str:
    """Return what is wrong after a cut; "" for nothing."""
    for client in ("old client", "new client"):
        if life.found[client] not in {OLD, NEW}:
            return f"the {client} gets {life.found[client]}"
        if PUBLISHED in life.claims and life.found[client] != NEW:
            return f"it was reported as published, and the {client} gets {life.found[client]}"
    if life.found["findings"]:
        return f"verify finds {life.found['findings']}"
    return life.fault or ("" if life.after == whole.found else f"done again it ends as {life.after}")


def sweep(machine: Power, whole: Life, cuts: list[tuple[int, str]]) -> None:
    """Check every cut, and print how many there were."""
    found = []
    for at, loss in cuts:
        name = whole.calls[at] if at < len(whole.calls) else "its end"
        if wrong := judge(machine.cut(at, loss), whole):
            found.append(f"before call {at} ({name}), {loss} lost: {wrong}")
    how = "processes killed" if machine.kind == "none" else f"power cut on {machine.kind}"
    print(f"\n{how} at {len(cuts)} points of a publication of {len(whole.calls)} calls: {len(found)} did harm")
    assert found == []


def points(machine: Power, whole: Life) -> list[tuple[int, str]]:
    """Return every system call, with everything that a cut there may lose."""
    losses = ("none",) if machine.kind == "none" else disk.LOSSES
    return [(at, loss) for at in range(len(whole.calls) + 1) for loss in losses]


@pytest.mark.timeout(180)
def test_a_publication_survives_cuts_here_and_there(machine: Power) -> None:
    whole = machine.rehearse()
    assert whole.found == {
        "old client": NEW,
        "new client": NEW,
        "findings": [],
        "root": 2,
        "drafts": [],
        "parts": [],
    }
    sweep(machine, whole, random.Random(SEED).sample(points(machine, whole), SAMPLE))


def judge_crowded(life: Life, whole: Life) -> str:
    """Return what is wrong after it ran with little room on the disk; "" for nothing."""
    left = [name for name in life.found["parts"] if name]
    return judge(life, whole) or (f"left lying: {left}" if left else "")


@pytest.mark.timeout(180)
def test_a_publication_survives_a_full_disk(machine: Power) -> None:
    whole = machine.rehearse()
    lives = {free: machine.crowd(free) for free in range(0, ENOUGH_BYTES, ENOUGH_BYTES // CROWDED)}
    wrong = {free: said for free, life in lives.items() if (said := judge_crowded(life, whole))}
    published = sum(PUBLISHED in life.claims for life in lives.values())
    print(f"\n{machine.kind} with 0 to {ENOUGH_BYTES} bytes left, {len(lives)} times: {published} published")
    assert wrong == {}
    assert 0 < published < len(lives), "the disk was never full, or always"


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_publication_survives_a_cut_at_every_system_call(machine: Power) -> None:
    whole = machine.rehearse()
    sweep(machine, whole, points(machine, whole))
