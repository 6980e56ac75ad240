"""The charge for a peer's bytes follows what they cost, class by class."""

from __future__ import annotations

from statistics import geometric_mean

import pytest

from tests.simulators.http2_work import CLASSES, Measured, measured

pytestmark = pytest.mark.asyncio
LEAST_PASSES, MOST_PASSES = 5, 40
SIZE = 64 * 1024
FACTOR = 2.0


async def test_the_charge_of_each_class_is_its_cost_within_a_factor_of_two() -> None:
    """A machine is faster or slower for all classes: each is compared with their mean.

    The least of several passes is what a class costs when nothing else has the processor's caches. A busy machine needs
    more passes; a wrong charge stays wrong in all of them.
    """
    best: dict[str, Measured] = {}
    relative: dict[str, float] = {}
    for count in range(1, MOST_PASSES + 1):
        for name, work in CLASSES.items():
            found = await measured(work, SIZE * work.times)
            if name not in best or found.cost_ns < best[name].cost_ns:
                best[name] = found
        ratios = {name: found.charge_ns / found.cost_ns for name, found in best.items()}
        mean = geometric_mean(ratios.values())
        relative = {name: round(ratio / mean, 2) for name, ratio in ratios.items()}
        if count >= LEAST_PASSES and all(1 / FACTOR <= each <= FACTOR for each in relative.values()):
            return
    pytest.fail(f"{relative}")


async def test_a_slice_of_work_is_bounded_whatever_the_bytes_are() -> None:
    """A header block is read whole; its size and the size of what it unfolds to bound it."""
    for name, work in CLASSES.items():
        assert (await measured(work, SIZE)).largest_ns < 4_000_000, name
