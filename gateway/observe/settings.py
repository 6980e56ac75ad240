"""Every bound of logs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Defaults suit journald."""

    level: str = "info"  # debug, info, warning or error: what is less urgent is not written
    format: str = "auto"  # console, json, or auto: console on a terminal, else json
    repeats: int = 5  # equal warnings written per repeat_period_s; the next one says how many were left out
    repeat_period_s: float = 60.0  # after this long an equal warning is written again
    max_value_chars: int = 2048  # longer values of one log line are cut
