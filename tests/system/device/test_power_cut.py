"""Power cut at any system call of an update: the old release or the new one, what was reported, and no floor lower.

Real cuts on loop-mounted ext4 and xfs (EXT4_IOC_SHUTDOWN) after which the file system is mounted again, checked, and
the update resumed. Where mounting is not allowed processes are killed instead, and the printed line says so.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulators import disk
from tests.simulators.power import Life, Power, power

SEED = 4
SAMPLE = 12
"""Cuts per file system in `make test`."""
UPDATE = "tests.simulators.store_update"
CARELESS = "tests.simulators.careless_update"


@pytest.fixture(scope="module", params=["ext4", "xfs", "none"])
def machine(request: pytest.FixtureRequest) -> Iterator[Power]:
    """Yield a device with release 2, on each kind of file system; "none": it is only killed."""
    with power(UPDATE, request.param) as started:
        yield started


def losses(kind: str) -> tuple[str, ...]:
    """Return what a cut may take; a kill takes nothing that was written."""
    return ("none",) if kind == "none" else disk.LOSSES


def judge(life: Life, old: str, new: str) -> str:
    """Return what is wrong with what a boot found after a cut; "" for nothing."""
    found, claims = life.found, [json.loads(claim) for claim in life.claims]
    serving = found["serves"].get("meter")
    floors = [claim["floors"] for claim in claims if "floors" in claim]
    if serving not in {old, new}:
        return f"serves {serving}"
    if found["wrong"]:
        return f"not as their names promise: {found['wrong']}"
    if {"installed": new} in claims and serving != new:
        return f"reported {new} as installed, serves {serving}"
    if new in found["finished"] and serving != new:
        return f"the journal says {new} is installed, {serving} serves"
    for claimed in floors:
        if lower := [name for name, floor in claimed.items() if found["floors"].get(name, -1) < floor]:
            return f"floors have fallen: {lower}"
    return life.fault


def complaints(machine: Power, whole: Life, cuts: list[tuple[int, str]]) -> Iterator[str]:
    """Yield what is wrong after each of these cuts. `whole`: how it ends without one."""
    for at, loss in cuts:
        life = machine.cut(at, loss)
        name = whole.calls[at] if at < len(whole.calls) else "its end"
        wrong = judge(life, "2", "3") or ("" if life.after == whole.found else f"resumed, it ends as {life.after}")
        if any(life.found["floors"][floor] < value for floor, value in BEFORE.items()):
            wrong = wrong or f"floors are below those before: {life.found['floors']}"
        if wrong:
            yield f"before call {at} ({name}), {loss} lost: {wrong}"


BEFORE = {"assignment": 2, "timestamp": 20, "acme/meter": 2}


def sweep(machine: Power, cuts: list[tuple[int, str]], whole: Life, capsys: pytest.CaptureFixture[str]) -> None:
    found = list(complaints(machine, whole, cuts))
    how = "processes killed" if machine.kind == "none" else f"power cut on {machine.kind}"
    calls = len(whole.calls)
    points = (calls + 1) * len(losses(machine.kind))
    with capsys.disabled():
        print(f"\n{how} at {len(cuts)} of {points} points of an update of {calls} system calls: {len(found)} ended")
        print("otherwise than in the old release or the new one, what was reported being durable and no floor lower")
    assert found == []


def every(machine: Power, whole: Life) -> list[tuple[int, str]]:
    return [(at, loss) for at in range(len(whole.calls) + 1) for loss in losses(machine.kind)]


@pytest.mark.timeout(180)
def test_an_update_survives_cuts_here_and_there(machine: Power, capsys: pytest.CaptureFixture[str]) -> None:
    whole = machine.rehearse()
    sweep(machine, random.Random(SEED).sample(every(machine, whole), SAMPLE), whole, capsys)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_an_update_survives_a_cut_at_every_system_call(machine: Power, capsys: pytest.CaptureFixture[str]) -> None:
    whole = machine.rehearse()
    sweep(machine, every(machine, whole), whole, capsys)


def test_the_update_is_what_it_should_be(machine: Power) -> None:
    """The rehearsal that the sweeps compare with: it does everything, and syncs what it does."""
    whole = machine.rehearse()
    calls = Counter(whole.calls)
    assert whole.found["serves"] == {"meter": "3"}
    assert whole.found["previous"] == {"meter": "2"}
    assert (whole.found["step"], whole.found["finished"]) == ("", ["3", "2", "1"])
    assert [name for name in whole.found["names"] if ".tmp" in name or ".part" in name] == []
    assert [json.loads(claim) for claim in whole.claims][-1] == {"installed": "3"}
    assert calls["rename"] + calls["renameat2"] + calls["renameat"] >= 6
    assert calls["fsync"] + calls["fdatasync"] >= 20


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["ext4", "xfs", "none"])
def test_the_sweep_notices_what_careless_programs_lose(kind: str) -> None:
    """The sweep itself: renaming without fsync loses what was reported, or leaves a file without its content."""
    with power(CARELESS, kind) as machine:
        calls = machine.rehearse().calls
        after_writing = [at + 1 for at, name in enumerate(calls) if name == "write"]
        lives = [machine.cut(at, loss) for at in after_writing for loss in losses(machine.kind)]
    broken = {claim for life in lives for claim in life.claims if life.found.get(claim) != "new"}
    torn = {name for life in lives for name, state in life.found.items() if state == "torn"}
    if machine.kind == "none":
        assert (broken, torn) == (set(), set()), "a kill takes nothing that was written: carelessness is not seen"
    else:
        assert broken == {"renamed", "renamed and synced folder", "journal"}
        assert "renamed and synced folder" in torn
