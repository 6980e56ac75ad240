"""Assignment of the fleet's director to one device: releases in slots. Values; `trust` verifies them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

SOFTWARE_SLOT = "@software"
"""Reserved slot of the programs themselves; no model can have that name."""
SETTINGS_SLOT = "@settings"
"""Reserved slot of the gateway's settings; no model can have that name."""
RESERVED_SLOTS: Mapping[str, str] = MappingProxyType({SOFTWARE_SLOT: "software", SETTINGS_SLOT: "settings"})
"""What each reserved slot holds, which is also the first part of the paths of its releases. It is never emptied."""
ATTEMPT_LIMIT = 2**53 - 1
"""Greatest number of an attempt. Every JSON parser represents it exactly."""


@dataclass(frozen=True, slots=True)
class Target:
    """Signed file of the repository: path, size and SHA-256 (hex)."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """Assignment of one device.

    `slots`: release by slot, the model's name on the device; `files`: device profiles and policies. `version` grows
    with every change of the assignment and every renewed signature. Times are UTC. `nonce` repeats the device's nonce
    ("": none). `poll_s`: pause until the next poll (None: as the device is configured).
    """

    device: str
    version: int
    issued: datetime
    expires: datetime
    slots: Mapping[str, Target]
    files: tuple[Target, ...] = ()
    nonce: str = ""
    poll_s: float | None = None
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def models(self) -> Mapping[str, Target]:
        """Return the releases of models by slot: all but those in the reserved slots."""
        return {slot: target for slot, target in self.slots.items() if slot not in RESERVED_SLOTS}

    def attempt(self, slot: str) -> int:
        """Return the attempt at which the slot's release is offered; 0 if it is not stated.

        The director counts from 1 (`extra["attempts"]`).
        """
        attempts = self.extra.get("attempts")
        number = attempts.get(slot) if isinstance(attempts, Mapping) else None
        return number if type(number) is int and 1 <= number <= ATTEMPT_LIMIT else 0

    @property
    def removed(self) -> frozenset[str]:
        """Return the slots of models that the director orders the device to empty (`extra["removed"]`).

        A slot that is neither assigned nor named here keeps its release.
        """
        names = self.extra.get("removed")
        found = names if isinstance(names, list) else []
        return frozenset(name for name in found if isinstance(name, str)) - self.slots.keys() - RESERVED_SLOTS.keys()

    @property
    def diagnostics(self) -> bool:
        """Return whether a request for diagnostics waits (`extra["diagnostics"]`)."""
        return self.extra.get("diagnostics") is True
