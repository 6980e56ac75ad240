"""Power cut while a newer agent takes over the journal of an older one: all that it held is there, and it goes on."""

from __future__ import annotations

import random

import pytest

from tests.simulators import disk
from tests.simulators.power import KINDS, Life, Power, power
from tests.simulators.store_upgrade import REJECTED

SEED, SAMPLE = 4, 8
UPGRADE = "tests.simulators.store_upgrade"
STAYS = {
    "floors": {"timestamp": 70, "assignment": 7, "acme/meter": "2", "time": "2027-01-01T00:00:00+00:00"},
    "accepted": [7, 0, 3000],
    "rejected": len(REJECTED),
    "fact": "abc",
}
BEFORE = {"under_way": ["commit"], "finished": [["rolled-back", 0]]}
BETWEEN = {"under_way": ["retire"], "finished": [["rolled-back", 0]]}
AFTER = {"under_way": [], "finished": [["done", 0], ["rolled-back", 0]]}


def judge(life: Life) -> str:
    """Return what is wrong after a cut; "" for nothing."""
    if life.found not in [{**STAYS, **left} for left in (BEFORE, BETWEEN, AFTER)]:
        return f"a boot finds {life.found}"
    if "went on" in life.claims and life.found != {**STAYS, **AFTER}:
        return f"what was done is undone: {life.found}"
    if life.after != {**STAYS, **AFTER}:
        return f"resumed, it ends as {life.after}"
    return life.fault


def sweep(machine: Power, sample: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    whole = machine.rehearse()
    assert whole.found == {**STAYS, **AFTER}
    losses = ("none",) if machine.kind == "none" else disk.LOSSES
    cuts = [(at, loss) for at in range(len(whole.calls) + 1) for loss in losses]
    chosen = random.Random(SEED).sample(cuts, min(sample, len(cuts))) if sample else cuts
    wrong = {cut: problem for cut in chosen if (problem := judge(machine.cut(*cut)))}
    with capsys.disabled():
        how = "processes killed" if machine.kind == "none" else f"power cut on {machine.kind}"
        print(
            f"\n{how} at {len(chosen)} of {len(cuts)} points of an upgrade of the journal: {len(wrong)} ended wrongly"
        )
    assert wrong == {}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
def test_an_upgrade_survives_cuts_here_and_there(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with power(UPGRADE, kind) as machine:
        sweep(machine, SAMPLE, capsys)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_an_upgrade_survives_a_cut_at_every_system_call(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with power(UPGRADE, kind) as machine:
        sweep(machine, None, capsys)
