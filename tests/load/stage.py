"""State that all devices of a simulation share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.common.timeouts import timeout
from tests.load.belief import Belief
from tests.load.identities import SimulatedIdentity
from tests.load.settings import Settings
from tests.load.tally import Tally
from tests.load.wire import Context, ServerAddress


class TurnedAwayError(Exception):
    """The controller refuses this device permanently."""


@dataclass(slots=True)
class Stage:
    """Shared state of a simulation.

    `servers`: replicas of the controller; `tokens`: those left, None if the controller knows the serials; `operator`:
    an API token that makes tokens, or ""; `gate`: limits concurrent devices; `stopping`: set when devices must end.
    """

    settings: Settings
    servers: tuple[ServerAddress, ...]
    authority: str
    belief: Belief
    tokens: list[str] | None
    known: Mapping[str, SimulatedIdentity]
    anonymous: Context | None
    gate: asyncio.Semaphore
    boot_epoch: int
    operator: str = ""
    tally: Tally = field(default_factory=Tally)
    began: float = field(default_factory=time.monotonic)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def at_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    def token(self) -> str:
        """Return an unused token. Raise TurnedAwayError if none is left."""
        if self.tokens is None:
            return ""
        if not self.tokens:
            raise TurnedAwayError
        return self.tokens.pop()

    async def pause(self, pause_s: float) -> None:
        """Sleep, but return early when the simulation stops."""
        try:
            async with timeout(pause_s):
                await self.stopping.wait()
        except TimeoutError:
            return
