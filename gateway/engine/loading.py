"""Loads of several versions at once. A slow one leaves its lane to the next, and goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable

LANE_S = 10.0
"""Time after which a load leaves its lane; most trials take less, one that hangs takes `[trial] deadline_s`."""
SLOW_LOADS = 4
"""Most slow loads at once, each with a child process. Others then keep their lanes."""


async def load_all(loads: Iterable[Callable[[], Coroutine[None, None, None]]], lanes: int) -> None:
    """Run `loads` in order, `lanes` at a time, and up to SLOW_LOADS slow ones. Return when all have ended."""
    lane, slow = asyncio.Semaphore(lanes), asyncio.Semaphore(SLOW_LOADS)
    async with asyncio.TaskGroup() as group:
        for load in loads:
            await lane.acquire()
            group.create_task(_hold(lane, slow, group.create_task(load())))


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
