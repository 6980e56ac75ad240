"""Limits of logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "console", "json")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Settings of logs. The defaults suit journald."""

    level: str = "info"  # debug, info, warning or error: less urgent lines are not written
    format: str = "auto"  # console, json, or auto: console on a terminal, else json
    repeats: ClassVar[int] = 5  # equal warnings per repeat_period_s; the next one has the number of omitted ones
    repeat_period_s: ClassVar[float] = 60.0  # time after which an equal warning is written again
    max_value_chars: ClassVar[int] = 2048  # longer values of one log line are cut

    def __post_init__(self) -> None:
        """Refuse unknown values. Raises ConfigurationError (table log)."""
        for key, value, known in (("level", self.level, LEVELS), ("format", self.format, FORMATS)):
            if value not in known:
                raise ConfigurationError(
                    f"{value!r:.40} is unknown; write one of {', '.join(known)}", table="log", key=key
                )
