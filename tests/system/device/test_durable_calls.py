"""Every file and name that is trusted later is waited for: seen in the system calls, whatever the file system."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulators.durable_calls import CALLS
from tests.simulators.power import Life, power

SCENARIO = "tests.simulators.durable_calls"
CLAIM = "write"
"""A claim is a call, too: the last one of its part."""


def plain(name: str) -> str:
    """Return `unlink` for `unlinkat`, `rename` for `renameat2`: which of them it is depends on machine and library."""
    return name.removesuffix("2").removesuffix("at")


def parts(life: Life) -> Iterator[tuple[str, list[str]]]:
    """Yield each claim, and the calls before it."""
    calls, start = [plain(name) for name in life.calls], 0
    for claim in life.claims:
        expected = CALLS.get(claim, "").split()
        end = start + (len(expected) if expected else calls[start:].index(CLAIM))
        yield claim, calls[start:end]
        assert calls[end] == CLAIM, f"{claim} makes more calls: {calls[start : end + 5]}"
        start = end + 1


def test_every_name_is_waited_for() -> None:
    with power(SCENARIO, "none") as machine:
        found = dict(parts(machine.rehearse()))
    found.pop("remove")
    assert {claim: " ".join(calls) for claim, calls in found.items()} == CALLS
