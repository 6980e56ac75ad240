"""Every bound of logs."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.errors import ConfigurationError

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "console", "json")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Defaults suit journald."""

    level: str = "info"  # debug, info, warning or error: what is less urgent is not written
    format: str = "auto"  # console, json, or auto: console on a terminal, else json
    repeats: int = 5  # equal warnings written per repeat_period_s; the next one says how many were left out
    repeat_period_s: float = 60.0  # after this long an equal warning is written again
    max_value_chars: int = 2048  # longer values of one log line are cut

    def __post_init__(self) -> None:
        """Refuse unknown words. Raises ConfigurationError (table log)."""
        for key, value, known in (("level", self.level, LEVELS), ("format", self.format, FORMATS)):
            if value not in known:
                problem = f"{value!r:.40} is unknown; write one of {', '.join(known)}"
                raise ConfigurationError(problem, table="log", key=key)
