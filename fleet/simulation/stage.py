"""What all devices of a simulation have in common."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fleet.simulation.belief import Belief
from fleet.simulation.identities import Identity
from fleet.simulation.settings import Settings
from fleet.simulation.tally import Tally
from fleet.simulation.wire import Context, Door


class TurnedAwayError(Exception):
    """The controller does not let this device in, and asking again changes nothing."""


@dataclass(slots=True)
class Stage:
    """`doors`: replicas of the controller; `tokens`: those that are left, None where the controller knows the serials;
    `operator`: an API token by which they are made, "" where they are there; `gate`: who talks at one time; `stopping`:
    nobody begins anything new."""

    settings: Settings
    doors: tuple[Door, ...]
    authority: str
    belief: Belief
    tokens: list[str] | None
    known: Mapping[str, Identity]
    anonymous: Context | None
    gate: asyncio.Semaphore
    boot_epoch: int
    operator: str = ""
    tally: Tally = field(default_factory=Tally)
    began: float = field(default_factory=time.monotonic)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def at_s(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    def token(self) -> str:
        """One that nobody else has taken. Raises TurnedAwayError where none is left."""
        if self.tokens is None:
            return ""
        if not self.tokens:
            raise TurnedAwayError
        return self.tokens.pop()

    async def pause(self, pause_s: float) -> None:
        """Sleep, or stop sleeping because all is over."""
        try:
            async with asyncio.timeout(pause_s):
                await self.stopping.wait()
        except TimeoutError:
            return
