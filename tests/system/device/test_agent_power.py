"""Power cut, kill -9 and a full disk at any system call of a whole `edge-agent sync`.

It leaves the old release or the new one, what was told to the daemon stays true, no floor falls, and the next sync ends
it.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.simulators import disk
from tests.simulators.power import KINDS, Life, Power, power

SEED, SAMPLE, STEP_BYTES, ENOUGH_BYTES = 4, 8, 4096, 1 << 19
SYNC = "tests.simulators.agent_update"
SLOT = "meter"


@pytest.fixture(scope="module", params=KINDS)
def machine(request: pytest.FixtureRequest) -> Iterator[Power]:
    """Yield a device with version 1, on each kind of file system; "none": it is only killed."""
    with power(SYNC, request.param) as started:
        yield started


def every(machine: Power, whole: Life) -> list[tuple[int, str]]:
    losses = ("none",) if machine.kind == "none" else disk.LOSSES
    return [(at, loss) for at in range(len(whole.calls) + 1) for loss in losses]


def wrong(life: Life, whole: Life, before: dict[str, Any]) -> str:
    """Return what is wrong with what a boot found; "" for nothing."""
    found, claims = life.found, [json.loads(claim) for claim in life.claims]
    serves = found["serves"][SLOT]
    promised = [claim["floors"] for claim in claims if "floors" in claim]
    if serves not in {"1", "2"}:
        return f"serves {serves!r}"
    if found["wrong"]:
        return f"not what was signed: {found['wrong']}"
    if ({"installed": "2"} in claims or "2" in found["finished"]) and serves != "2":
        return f"told the daemon that 2 is committed, {serves} is"
    if any(found["floors"].get(name, -1) < value for floors in (before, *promised) for name, value in floors.items()):
        return f"floors have fallen: {found['floors']}"
    if life.after != whole.found:
        return f"the next sync ends as {life.after}, not as {whole.found}"
    return life.fault


def sweep(machine: Power, cuts: Sequence[tuple[int, str]], capsys: pytest.CaptureFixture[str]) -> None:
    whole = machine.rehearse()
    before = machine.cut(*every(machine, whole)[0]).found["floors"]
    lives = {cut: machine.cut(*cut) for cut in cuts}
    found = Counter(f"version {life.found['serves'][SLOT]}" for life in lives.values())
    problems = {cut: problem for cut, life in lives.items() if (problem := wrong(life, whole, before))}
    how = "killed" if machine.kind == "none" else f"power cut on {machine.kind}"
    points = len(every(machine, whole))
    with capsys.disabled():
        print(f"\nedge-agent sync {how} at {len(cuts)} of {points} points: {dict(found)}, {len(problems)} wrong")
    assert problems == {}


@pytest.mark.timeout(180)
def test_a_sync_survives_cuts_here_and_there(machine: Power, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(machine, random.Random(SEED).sample(every(machine, machine.rehearse()), SAMPLE), capsys)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_sync_survives_a_cut_at_every_system_call(machine: Power, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(machine, every(machine, machine.rehearse()), capsys)


def crowd(machine: Power, sizes: range, capsys: pytest.CaptureFixture[str]) -> None:
    whole = machine.rehearse()
    lives = {free: machine.crowd(free) for free in sizes}
    errors = Counter(life.error or "in step" for life in lives.values())
    problems = {free: problem for free, life in lives.items() if (problem := wrong(life, whole, {}))}
    how = "every file limited" if machine.kind == "none" else f"{machine.kind} full"
    with capsys.disabled():
        print(f"\nedge-agent sync, {how}, {sizes[0]} to {sizes[-1]} bytes left, {len(sizes)} times: {dict(errors)}")
    assert problems == {}
    assert set(errors) <= {"in step", "SpaceError"} or machine.kind == "none"
    assert set(errors) > {"in step"}, "the disk was never full, or always"


@pytest.mark.timeout(180)
def test_a_sync_survives_a_full_disk_here_and_there(machine: Power, capsys: pytest.CaptureFixture[str]) -> None:
    crowd(machine, range(0, ENOUGH_BYTES, STEP_BYTES * 24 + 512), capsys)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_sync_survives_a_full_disk_at_every_block(machine: Power, capsys: pytest.CaptureFixture[str]) -> None:
    crowd(machine, range(0, ENOUGH_BYTES, STEP_BYTES), capsys)


def test_the_sync_is_what_it_should_be(machine: Power) -> None:
    """The rehearsal that the sweeps compare with: it does everything."""
    whole = machine.rehearse()
    assert (whole.found["serves"], whole.found["state"]) == ({SLOT: "2"}, "in-step")
    assert whole.found["finished"] == ["2", "1"]
    assert [name for name in whole.found["names"] if ".tmp" in name or ".part" in name] == []
    assert {"installed": "2"} in [json.loads(claim) for claim in whole.claims]
    assert Counter(whole.calls)["fsync"] + Counter(whole.calls)["fdatasync"] >= 40
