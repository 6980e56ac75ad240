"""How a question to the fleet ended, as the journal keeps it and the reports tell it."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.assignment import Assignment

POLLED, WAITING, PROFILE = "polled", "waiting", "profile"
"""Names of the facts: how the last question ended; why updates do not go on, by slot; this kind of device."""

OUT_OF_REACH = frozenset({"unreachable", "daemon", "store"})
"""Reasons that say nothing of what is assigned: another time it may be otherwise."""


@dataclass(frozen=True, slots=True)
class Polled:
    """How a question to the fleet ended. `reason`: of `Reason` (trust), of OUT_OF_REACH, "daemon-refuses" or ""."""

    assignment: Assignment | None
    reason: str = ""
    problem: str = ""
    retry_after_s: float = 0.0
