"""The disk fills up at any point of an update: a clear error, the committed release serves, with room it goes on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulators.power import Power, power

STEP_BYTES = 4096
ENOUGH_BYTES = 1 << 20
UPDATE = "tests.simulators.store_update"
CLEAR = {"", "SpaceError"}


@pytest.fixture(scope="module", params=["ext4", "xfs", "none"])
def machine(request: pytest.FixtureRequest) -> Iterator[Power]:
    """Yield a device with release 2, on each kind of file system."""
    with power(UPDATE, request.param) as started:
        yield started


def complaint(machine: Power, free_bytes: int, whole: object) -> tuple[str, str]:
    """Return how it ended with so much room; and what is wrong with that, "" for nothing."""
    life = machine.crowd(free_bytes)
    serves = life.found["serves"].get("meter")
    reported = {"installed": "3"} in [json.loads(claim) for claim in life.claims]
    if machine.kind != "none" and life.error not in CLEAR:
        return life.error, f"an error that does not speak of room: {life.error}"
    if life.found["wrong"] or serves not in {"2", "3"} or (reported and serves != "3"):
        return life.error, f"serves {serves}, reported: {reported}, wrong: {life.found['wrong']}"
    return life.error, "" if life.after == whole else f"with room again it ends as {life.after}"


def sweep(machine: Power, sizes: range, capsys: pytest.CaptureFixture[str]) -> None:
    whole = machine.rehearse().found
    ends = {free: complaint(machine, free, whole) for free in sizes}
    how = "every file limited (no right to mount)" if machine.kind == "none" else f"{machine.kind} full"
    errors = Counter(error or "installed" for error, _ in ends.values())
    with capsys.disabled():
        print(f"\n{how} with {sizes[0]} to {sizes[-1]} bytes left, {len(sizes)} times: {dict(errors)}")
    assert {free: problem for free, (_, problem) in ends.items() if problem} == {}
    assert set(errors) > {"installed"}, "the disk was never full, or always"


@pytest.mark.timeout(180)
def test_an_update_survives_a_full_disk_here_and_there(machine: Power, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(machine, range(0, ENOUGH_BYTES, STEP_BYTES * 24 + 512), capsys)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_update_survives_a_full_disk_at_every_block(machine: Power, capsys: pytest.CaptureFixture[str]) -> None:
    sweep(machine, range(0, ENOUGH_BYTES, STEP_BYTES), capsys)
