"""What comes from the broker and what goes to it, as values that know no client library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

JSON = "application/json"
REFUSED = 0x80
"""PUBACK reason codes from here on are failures (MQTT 5, 4.13)."""


@dataclass(slots=True)
class Message:
    """One received PUBLISH; whoever has read the payload may empty it.

    `epoch` counts connections: an acknowledgement belongs to the one it came by.

    `arrived_ns` is on the monotonic clock, `wall_ns` since the Unix epoch; `expiry_s` is what was left of the Message
    Expiry Interval when the broker sent it (None: none). Properties are empty on MQTT 3.1.1.
    """

    topic: str
    payload: bytes
    qos: int = 0
    dup: bool = False
    retain: bool = False
    mid: int = 0
    epoch: int = 0
    arrived_ns: int = 0
    wall_ns: int = 0
    content_type: str = ""
    response_topic: str = ""
    correlation: bytes | None = None
    expiry_s: int | None = None
    user: tuple[tuple[str, str], ...] = ()

    def user_property(self, name: str) -> str:
        """The first user property called `name`, or ""."""
        return next((value for key, value in self.user if key == name), "")

    def deadline_ns(self) -> int | None:
        """When the Message Expiry Interval ends, on the clock of `arrived_ns`."""
        return None if self.expiry_s is None else self.arrived_ns + self.expiry_s * 1_000_000_000


Taken = Callable[[int], None]
"""Called once with the PUBACK's reason code, or with 0 when a QoS 0 message has gone to the socket."""


@dataclass(slots=True)
class Publication:
    """One PUBLISH to send. On MQTT 3.1.1 the properties stay behind."""

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    content_type: str = ""
    correlation: bytes | None = None
    taken: Taken | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A topic filter and the quality of service asked for."""

    filter: str
    qos: int
