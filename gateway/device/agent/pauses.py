"""Pause until the next poll, decided on values. `chance` is drawn from [0, 1) for each pause."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.common.domain.retry import longest_pause_s
from gateway.device.agent.settings import AgentSettings


@dataclass(frozen=True, slots=True)
class CycleResult:
    """Result of a cycle: the pause before the next one, and whether the poll failed."""

    pause_s: float
    failed: bool


def pause_s(
    settings: AgentSettings, asked_s: float | None, failures: int, retry_after_s: float, chance: float
) -> float:
    """Return the pause in seconds, with jitter; never less than the server asked for.

    `asked_s`: interval in the assignment, or None. `failures`: failed polls in a row.
    """
    poll_s = settings.poll_s if asked_s is None else asked_s
    base_s = poll_s
    if failures:
        base_s = longest_pause_s(failures, settings.retry_s, poll_s)
    jitter = 1.0 + (2.0 * chance - 1.0) * settings.jitter_percent / 100.0
    return max(base_s * jitter, retry_after_s)
