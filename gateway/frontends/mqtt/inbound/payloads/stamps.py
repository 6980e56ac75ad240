"""Timestamps and sequence numbers of rows, as columns after the channels. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from gateway.frontends.mqtt.inbound.payloads.channels import Channel
from gateway.frontends.mqtt.inbound.payloads.errors import invalid
from gateway.frontends.mqtt.inbound.payloads.text import NUMBER, NUMBER_LIMIT_CHARS
from gateway.frontends.mqtt.settings.paths import compile_path
from gateway.frontends.mqtt.settings.route import MqttChannel
from gateway.frontends.mqtt.settings.sample_time import UNITS_NS, MqttTime, zone_of

TIME_LIMIT_CHARS = 40
"""Longest text of a timestamp: ISO 8601 with nanoseconds has 35 characters."""
SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TimeChannel(Channel):
    """Timestamp of a row, in nanoseconds since the Unix epoch; a float is exact to 256 ns today."""

    zone: tzinfo = UTC

    def number(self, value: Any) -> float | None:
        """Return the time of a number, or of a text in ISO 8601. Raises RequestError INVALID for anything else."""
        if not isinstance(value, str) or _is_number(value):
            return Channel.number(self, value)
        try:
            found = datetime.fromisoformat(value.strip()) if len(value) <= TIME_LIMIT_CHARS else None
        except ValueError:
            found = None
        if found is None:
            problem = f"path '{self.settings.path}' finds {value!r:.60}; expected a number since 1970 or ISO 8601"
            raise invalid(problem)
        return (found if found.tzinfo else found.replace(tzinfo=self.zone)).timestamp() * SECOND_NS


def stamps_of(time: MqttTime) -> tuple[Channel, ...]:
    """Return the columns for the time and the sequence number of a row, as far as the route names them."""
    stamps: list[Channel] = []
    if time.path:
        settings = MqttChannel(time.path, scale=float(UNITS_NS[time.unit]), missing="refuse")
        stamps.append(TimeChannel(settings, compile_path(time.path), {}, zone=zone_of(time.zone)))
    if time.sequence:
        stamps.append(Channel(MqttChannel(time.sequence, missing="refuse"), compile_path(time.sequence), {}))
    return tuple(stamps)


def _is_number(text: str) -> bool:
    word = text.strip()
    return len(word) <= NUMBER_LIMIT_CHARS and NUMBER.fullmatch(word) is not None
