"""Power cut while telemetry is kept and sent: evidence stays, and no number that was sent is given out again."""

from __future__ import annotations

import json
import random

import pytest

from tests.simulators import disk
from tests.simulators.power import KINDS, Life, Power, power

SEED, SAMPLE = 4, 8
SPOOL = "tests.simulators.spool_update"


def judge(life: Life) -> str:
    """Return what is wrong after a cut; "" for nothing."""
    claims = [json.loads(claim) for claim in life.claims]
    for when, found in (("after the cut", life.found), ("resumed", life.after)):
        if found["renewed"]:
            return f"{when} it is begun anew: {found['renewed']}"
        here = {(stream, epoch, seq): document for stream, epoch, seq, document in found["entries"]}
        if any(claim["evidence"] not in here.values() for claim in claims if "evidence" in claim):
            return f"{when} evidence is gone that was promised to stay"
        for stream, epoch, seq, document in (entry for claim in claims for entry in claim.get("sent", ())):
            if here.get((stream, epoch, seq), document) != document:
                return f"{when} number {seq} of {stream} is another record's than it was when it was sent"
            if found["last"][stream] < seq:
                return f"{when} number {seq} of {stream} was sent and will be given out again"
    return life.fault


def sweep(machine: Power, sample: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    whole = machine.rehearse()
    assert whole.found["last"] == {"vitals": 10, "updates": 2}
    losses = ("none",) if machine.kind == "none" else disk.LOSSES
    cuts = [(at, loss) for at in range(len(whole.calls) + 1) for loss in losses]
    chosen = random.Random(SEED).sample(cuts, sample) if sample else cuts
    wrong = {cut: problem for cut in chosen if (problem := judge(machine.cut(*cut)))}
    with capsys.disabled():
        how = "processes killed" if machine.kind == "none" else f"power cut on {machine.kind}"
        print(f"\n{how} at {len(chosen)} of {len(cuts)} points of keeping telemetry: {len(wrong)} ended wrongly")
    assert wrong == {}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", KINDS)
def test_the_spool_survives_cuts_here_and_there(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with power(SPOOL, kind) as machine:
        sweep(machine, SAMPLE, capsys)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_the_spool_survives_a_cut_at_every_system_call(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    with power(SPOOL, kind) as machine:
        sweep(machine, None, capsys)
