"""Settings of a route's results: contents, topic, payload, and properties of the message."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.mqtt.settings.templates import NAMES, check_payload, check_topic

CONTENTS = ("label", "scores", "values")
PUBLISH = ("always", "change", "never")
EXPIRY_LIMIT_S = 2**32 - 1
"""Largest Message Expiry Interval (MQTT 5, 3.3.2.3.3)."""
CLASSES_LIMIT = 100_000
TRACE_CONTEXT = ("traceparent", "tracestate")
"""User properties of W3C Trace Context."""
TABLE = "mqtt.route.result"


@dataclass(frozen=True, slots=True)
class ResultSettings:
    """Settings of `[mqtt.route.result]`: which results of a route are published, and in which form."""

    publish: str = "always"
    """always; change: if the label, or without one the value, differs from the sensor's last one; never: rules only."""
    content: str = "label"
    """label: label and score, or outputs; scores: also the scores by label; values: outputs as plain numbers."""
    top_k: int = 0
    """Classes in `scores`, best first; 0: all."""
    topic: str = "edge/{gateway}/results/{route}/{sensor}"
    """Template of the topic."""
    payload: str = "json"
    """json: an object, or the JSON of `template`; text: the text of `template`; value: the label or number alone."""
    template: str = ""
    """Template of the payload."""
    max_qos: int = 1
    """Highest quality of service: results are published as the route says, but not above it."""
    retain: bool = False
    """Ask the broker to keep the last result of a topic."""
    expiry_s: int = 0
    """Message Expiry Interval (MQTT 5); 0: none."""
    user_properties: tuple[str, ...] = TRACE_CONTEXT
    """User properties of the message that its result repeats (MQTT 5)."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route.result)."""
        for key, wrong, rule in (
            ("publish", self.publish not in PUBLISH, f"one of {', '.join(PUBLISH)}"),
            ("content", self.content not in CONTENTS, f"one of {', '.join(CONTENTS)}"),
            ("top_k", not 0 <= self.top_k <= CLASSES_LIMIT, f"0 to {CLASSES_LIMIT} classes"),
            ("max_qos", self.max_qos not in {0, 1}, "0 or 1"),
            ("expiry_s", not 0 <= self.expiry_s <= EXPIRY_LIMIT_S, f"0 to {EXPIRY_LIMIT_S} seconds"),
        ):
            if wrong:
                raise ConfigurationError(f"must be {rule}, not {getattr(self, key)!r:.80}", table=TABLE, key=key)
        check_topic(self.topic, NAMES, table=TABLE)
        check_payload(self.payload, self.template, NAMES, table=TABLE)


DEFAULT = ResultSettings()
