"""Result of a poll, as the journal keeps it and reports send it."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.common.domain.assignment import Assignment

POLLED, WAITING, PROFILE = "polled", "waiting", "profile"
"""Names of the facts: result of the last poll; why updates do not continue, by slot; device profile."""

OUT_OF_REACH = frozenset({"unreachable", "daemon", "store"})
"""Reasons that say nothing about the assignment: the same poll may succeed later."""

SUSPENDED = "suspended"
"""Reason: an operator suspended this device. That is no failure: it polls on at its usual interval."""
SUSPENDED_KIND = "/problems/device-suspended"
"""Type of the controller's refusals for that reason."""


@dataclass(frozen=True, slots=True)
class PollResult:
    """Result of a poll. `reason`: from `Reason` (trust), from OUT_OF_REACH, SUSPENDED, "daemon-refuses" or ""."""

    assignment: Assignment | None
    reason: str = ""
    problem: str = ""
    retry_after_s: float = 0.0
