"""Settings of session windows, which end when a sensor is silent."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.domain.errors import ConfigurationError

TABLE = "mqtt.route.window"
PADS = ("zero", "first", "last")


@dataclass(frozen=True, slots=True)
class MqttWindow:
    """Settings of one `[mqtt.route.window]`."""

    session_gap_s: float = 0.0
    """Silence of a sensor that ends its window; 0: windows have a fixed number of rows.

    Silence is measured between the times of samples if they have any, else between their arrivals.
    """
    pad: str = ""
    """Rows that make a short window as long as the model takes.

    zero (before the first sample), first (the first sample again, before it) or last (the last one again, after it);
    empty: zero, or none if the model takes any number of rows.
    """
    least_rows: int = 1
    """Rows that a session has at least; a shorter one is dropped and counted."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route.window)."""
        together = "absent without session_gap_s"
        for key, wrong, rule in (
            ("pad", self.pad not in {"", *PADS}, f"one of {', '.join(PADS)}"),
            ("pad", bool(self.pad) and not self.has_sessions, together),
            ("least_rows", not 1 <= self.least_rows <= 1_000_000, "1 to 1000000 rows"),
            ("least_rows", self.least_rows > 1 and not self.has_sessions, together),
        ):
            if wrong:
                raise ConfigurationError(f"must be {rule}, not {getattr(self, key)!r:.150}", table=TABLE, key=key)

    @property
    def has_sessions(self) -> bool:
        """Return True if windows end by silence."""
        return self.session_gap_s > 0
