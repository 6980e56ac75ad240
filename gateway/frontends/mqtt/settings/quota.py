"""Settings of a route's quota: how many messages each of its sensors may send."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gateway.domain.errors import ConfigurationError

TABLE = "mqtt.route.quota"
RATE_LIMIT, BURST_LIMIT, SENSORS_LIMIT = 1_000_000, 10_000_000, 1_000_000
BURST_S = 10.0
"""Time whose messages may come at once if `burst` does not say how many."""
_FORM = re.compile(r"(topic(\[\d{1,3}:?\])?|property\.\S+)?")


@dataclass(frozen=True, slots=True)
class MqttQuota:
    """Settings of one `[mqtt.route.quota]`. What exceeds it is dropped, counted, and reported as an error."""

    messages_per_s: float = 0.0
    """Messages per second of each sensor, on average; 0: no quota."""
    burst: int = 0
    """Messages that a sensor may send at once, such as those that the broker kept for us; 0: those of 10 s."""
    by: str = ""
    """Name that a quota belongs to: topic, topic[i], topic[i:] or property.<name>; empty: as `sensor` of the route."""
    max_sensors: int = 10_000
    """Sensors whose use is remembered; of more, the one that sent least recently begins with a full quota again."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route.quota)."""
        for key, wrong, rule in (
            ("messages_per_s", not 0 <= self.messages_per_s <= RATE_LIMIT, f"0 to {RATE_LIMIT} messages per second"),
            ("messages_per_s", not self.messages_per_s and bool(self.burst or self.by), "more than 0 with burst or by"),
            ("burst", not 0 <= self.burst <= BURST_LIMIT, f"0 to {BURST_LIMIT} messages"),
            ("by", not _FORM.fullmatch(self.by), "topic, topic[i], topic[i:] or property.<name>"),
            ("max_sensors", not 1 <= self.max_sensors <= SENSORS_LIMIT, f"1 to {SENSORS_LIMIT}"),
        ):
            if wrong:
                raise ConfigurationError(f"must be {rule}, not {getattr(self, key)!r:.150}", table=TABLE, key=key)

    @property
    def allowance(self) -> float:
        """Return the messages that may come at once."""
        return self.burst or max(1.0, self.messages_per_s * BURST_S)
