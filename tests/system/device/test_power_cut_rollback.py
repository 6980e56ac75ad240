"""Power cut while an update fails: the old release serves throughout, and what was rejected is not tried again."""

from __future__ import annotations

import json
import random

import pytest

from tests.simulators import disk
from tests.simulators.power import KINDS, Life, Power, power

SEED = 4
SAMPLE = 8
ROLLBACK = "tests.simulators.store_rollback"
REASON = "slower than before"


def judge(life: Life, whole: Life) -> str:
    """Return what is wrong after a cut; "" for nothing."""
    found, claims = life.found, [json.loads(claim) for claim in life.claims]
    if found["serves"] != {"meter": "2"} or found["wrong"]:
        return f"serves {found['serves']}, not as their names promise: {found['wrong']}"
    if claims and found["rejected"] != REASON:
        return "what was reported as rejected is not"
    if bool(found["rejected"]) != (found["step"] == "roll-back" or "3 rolled-back" in found["ended"]):
        return f"rejected: {found['rejected']!r}, at {found['step']}, ended {found['ended']}: one without the other"
    if life.after != whole.found:
        return f"resumed, it ends as {life.after}"
    return life.fault


def sweep(machine: Power, sample: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    whole = machine.rehearse()
    assert whole.found["rejected"] == REASON
    assert whole.found["ended"] == ["3 rolled-back", "2 done", "1 done"]
    losses = ("none",) if machine.kind == "none" else disk.LOSSES
    cuts = [(at, loss) for at in range(len(whole.calls) + 1) for loss in losses]
    chosen = random.Random(SEED).sample(cuts, sample) if sample else cuts
    wrong = {cut: problem for cut in chosen if (problem := judge(machine.cut(*cut), whole))}
    with capsys.disabled():
        how = "processes killed" if machine.kind == "none" else f"power cut on {machine.kind}"
        print(
            f"\n{how} at {len(chosen)} of {len(cuts)} points of an update that rolls back: {len(wrong)} ended wrongly"
        )
    assert wrong == {}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
def test_a_roll_back_survives_cuts_here_and_there(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with power(ROLLBACK, kind) as machine:
        sweep(machine, SAMPLE, capsys)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_roll_back_survives_a_cut_at_every_system_call(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with power(ROLLBACK, kind) as machine:
        sweep(machine, None, capsys)
