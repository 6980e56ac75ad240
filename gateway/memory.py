"""Shared memory of one gateway: its regions, their sweep, and the socket at which programs pass sealed memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from gateway.domain.access import Address, Security
from gateway.frontends.pools import Pools
from gateway.frontends.regions import Regions
from gateway.frontends.sealed_memory import SealedMemory
from gateway.frontends.settings import SharedMemorySettings


def start_regions(
    settings: SharedMemorySettings,
    security: Security,
    guard: Callable[[SealedMemory], object],
    pools: Pools,
    stack: AsyncExitStack,
) -> tuple[Regions, Sequence[Address]]:
    """Offer shared memory until `stack` closes. Return the regions and where sealed memory is registered.

    `guard` tells the socket's listener of each later replacement of `security` (`credentials.Credentials.guard`).
    Raises UnreachableError if the socket cannot be had.
    """
    regions = Regions(settings, refusals=pools.refusals)
    sweeping = asyncio.create_task(_sweep(regions, settings.sweep_s), name="sweep")
    stack.callback(sweeping.cancel)
    if not settings.socket:
        return regions, ()
    memory = SealedMemory(regions, settings, security, pools.refusals)
    guard(memory)
    bound = memory.start()
    stack.callback(memory.stop)
    return regions, (bound,)


async def _sweep(regions: Regions, every_s: float) -> None:
    """Drop the regions of programs that have ended, also when no other program registers."""
    while True:
        await asyncio.sleep(every_s)
        regions.sweep()
