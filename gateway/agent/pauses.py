"""How long until the fleet is asked again: a decision on values. `chance` is 0..1, drawn anew for each pause."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.agent.settings import AgentSettings
from gateway.domain.retry import longest_pause_s


@dataclass(frozen=True, slots=True)
class Turned:
    """How a turn ended: how long to sleep before the next, and whether the question failed."""

    pause_s: float
    failed: bool


def pause_s(
    settings: AgentSettings, asked_s: float | None, failures: int, retry_after_s: float, chance: float
) -> float:
    """In seconds, with jitter: never less than the server asked for.

    `asked_s` is what the assignment says (None: nothing); `failures` questions in a row have failed.
    """
    poll_s = settings.poll_s if asked_s is None else asked_s
    base_s = poll_s
    if failures:
        base_s = longest_pause_s(failures, settings.retry_s, poll_s)
    jitter = 1.0 + (2.0 * chance - 1.0) * settings.jitter_percent / 100.0
    return max(base_s * jitter, retry_after_s)
