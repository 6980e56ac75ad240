"""Settings of discovery by Home Assistant. They are checked when they are built."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class HomeAssistantSettings:
    """Settings of `[mqtt.home_assistant]`: discovery of the gateway and its sensors."""

    enabled: bool = False
    """Announce the gateway, and each sensor after its first result, to Home Assistant."""
    prefix: str = "homeassistant"
    """Home Assistant's discovery prefix."""
    max_sensors: int = 200
    """Sensors of all routes that are announced; others are counted and not announced."""
    birth_delay_s: float = 5.0
    """Upper end of the random delay after a start of Home Assistant before everything is announced again."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.home_assistant)."""
        for key, wrong, rule in (
            ("prefix", not re.fullmatch(r"(?!edge(/|$))[^+#$/\0][^+#\0]{0,255}", self.prefix), "a topic, not edge/…"),
            ("max_sensors", not 1 <= self.max_sensors <= 10_000, "1 to 10000"),
            ("birth_delay_s", not 0 <= self.birth_delay_s <= 3600, "0 to 3600 seconds"),
        ):
            if wrong:
                problem = f"must be {rule}, not {getattr(self, key)!r:.80}"
                raise ConfigurationError(problem, table="mqtt.home_assistant", key=key)
