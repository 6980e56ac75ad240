"""Order and number of loads at once: pipelines after what they run, slow loads next to quick ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence

from gateway.common.domain.release import Release

LANE_S = 10.0
"""Time after which a load leaves its lane; most trials take less, one that hangs takes `[trial] deadline_s`."""
SLOW_LOADS = 4
"""Most slow loads at once, each with a child process. Others then keep their lanes."""


def outer_first(pipelines: Sequence[Release]) -> list[list[Release]]:
    """Return pipelines in levels: each level is run by those before it only. Those that run each other are the last."""
    levels, left = list[list[Release]](), list(pipelines)
    while left:
        run = {model for one in left if one.pipeline for model, _ in one.pipeline.models}
        levels.append([one for one in left if one.name not in run] or left)
        left = [one for one in left if one not in levels[-1]]
    return levels


async def load_all(loads: Iterable[Callable[[], Coroutine[None, None, None]]], lanes: int) -> None:
    """Run `loads` in order, `lanes` at a time, and up to SLOW_LOADS slow ones. Return when all have ended."""
    lane, slow = asyncio.Semaphore(lanes), asyncio.Semaphore(SLOW_LOADS)
    tasks: list[asyncio.Task[None]] = []
    try:
        for load in loads:
            await lane.acquire()
            tasks.append(asyncio.create_task(load()))
            tasks.append(asyncio.create_task(_hold(lane, slow, tasks[-1])))
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _hold(lane: asyncio.Semaphore, slow: asyncio.Semaphore, load: asyncio.Task[None]) -> None:
    """Hold a lane until `load` ends, or takes longer than LANE_S and is admitted as a slow load."""
    done, _ = await asyncio.wait({load}, timeout=LANE_S)
    if done:
        lane.release()
        return
    place = asyncio.ensure_future(slow.acquire())
    try:
        await asyncio.wait({load, place}, return_when=asyncio.FIRST_COMPLETED)
        lane.release()
        await asyncio.wait({load})
    finally:
        if not place.cancel():
            slow.release()
