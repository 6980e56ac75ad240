"""Power cut at every system call of a blob's arrival, on real file systems: it is there whole, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulators import disk
from tests.simulators.blob_cut import KEPT
from tests.simulators.power import Life, Power, power


@pytest.fixture(scope="module", params=sorted(disk.SIZES_BYTES))
def machine(request: pytest.FixtureRequest) -> Iterator[Power]:
    with power("tests.simulators.blob_cut", request.param) as started:
        yield started


def wrong(life: Life) -> str:
    """Return what is wrong after a power cut; "" for nothing."""
    if life.found["old"] != "whole" or life.found["new"] == "damaged" or life.found["others"]:
        return f"the next start finds {life.found}"
    if KEPT in life.claims and life.found["new"] != "whole":
        return "it was said to be kept, and is gone"
    if life.after["new"] != "whole":
        return f"put again it is {life.after['new']}"
    return life.fault


@pytest.mark.timeout(120)
def test_a_blob_is_whole_or_absent_wherever_power_fails(machine: Power) -> None:
    whole = machine.rehearse()
    assert (whole.found["new"], KEPT in whole.claims, "fsync" in whole.calls) == ("whole", True, True)
    losses = ("none",) if machine.kind == "none" else disk.LOSSES
    cuts = [(at, loss) for at in range(len(whole.calls) + 1) for loss in losses]
    found = [(at, loss, harm) for at, loss in cuts if (harm := wrong(machine.cut(at, loss)))]
    print(f"\npower cut on {machine.kind} at {len(cuts)} points: {len(found)} did harm")
    assert found == []
