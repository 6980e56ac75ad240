"""Messages and publications, independent of the client library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

JSON = "application/json"
REFUSED = 0x80
"""Lowest PUBACK reason code that is a failure (MQTT 5, 4.13)."""


@dataclass(slots=True)
class Message:
    """Received PUBLISH. Code that has read the payload may empty it.

    `epoch` counts connections: an acknowledgement belongs to the connection of its message.

    `arrived_ns` is on the monotonic clock, `wall_ns` since the Unix epoch. `expiry_s` is the rest of the Message Expiry
    Interval when the broker sent the message (None: none). Properties are empty on MQTT 3.1.1.

    `route` is the route that takes the message. If several do, each has its own copy, and the copies share `routes`:
    the names of those that are not done.

    `name` identifies the message among those of its topic with the same payload: Correlation Data or the user property
    `id` of a request, or what `message_id` of a route finds. Empty: the packet id does, within one session.
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
    kept: Callable[[], object] | None = None
    """Callback in place of its acknowledgement: the journal keeps the message, so that it was acknowledged before."""
    key: bytes = b""
    """Key of a kept message (`journal.message_key`): its packet id may be another message's now."""
    route: str = ""
    routes: set[str] | None = None
    name: bytes | str = ""

    def done(self) -> bool:
        """Note that its route is done with the message. Return True if it can be acknowledged: all routes are done."""
        if self.routes is None:
            return True
        was_done = self.route not in self.routes
        self.routes.discard(self.route)
        return not (was_done or self.routes)

    def user_property(self, name: str) -> str:
        """Return the first user property called `name`, or ""."""
        for key, value in self.user:
            if key == name:
                return value
        return ""

    def deadline_ns(self) -> int | None:
        """Return the end of the Message Expiry Interval on the clock of `arrived_ns`, or None."""
        return None if self.expiry_s is None else self.arrived_ns + self.expiry_s * 1_000_000_000


Taken = Callable[[int], None]
"""Callback, called once with the PUBACK's reason code, or with 0 when a QoS 0 message was written to the socket."""


@dataclass(slots=True)
class OutgoingPublish:
    """PUBLISH to send. MQTT 3.1.1 has no properties: they are omitted.

    `expiry_s` is the Message Expiry Interval, 0 for none; `user` are user properties. `optional`: it is sent at once or
    not at all.
    """

    topic: str
    payload: bytes
    qos: int = 1
    retain: bool = False
    content_type: str = ""
    correlation: bytes | None = None
    taken: Taken | None = None
    expiry_s: int = 0
    user: tuple[tuple[str, str], ...] = ()
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topic filter and requested quality of service. `retained` requests the messages that the broker keeps, too."""

    filter: str
    qos: int
    retained: bool = False
