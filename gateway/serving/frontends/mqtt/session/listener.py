"""Events of a session, and what a CONNACK contains."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gateway.serving.frontends.mqtt.messages import Message
from gateway.serving.frontends.mqtt.session.control import ConnectAnswer
from gateway.serving.frontends.mqtt.session.packets import MalformedPacketError
from gateway.serving.frontends.mqtt.session.properties import Property


@dataclass(frozen=True, slots=True)
class Welcome:
    """Content of a CONNACK. `resumed`: the broker kept the session. `keepalive_s` is the one in force."""

    resumed: bool
    receive_maximum: int = 65_535
    maximum_packet_bytes: int = 268_435_455
    maximum_qos: int = 1
    retain: bool = True
    keepalive_s: int = 0
    client_id: str = ""
    version_5: bool = True

    @property
    def version(self) -> str:
        """Return the protocol version as text."""
        return "5" if self.version_5 else "3.1.1"


def read_welcome(answer: ConnectAnswer, keepalive_s: int, client_id: str, *, version_5: bool) -> Welcome:
    """Return the content of a CONNACK; what it does not tell is as we asked for, or as the standard says.

    Raises MalformedPacketError for a limit of 0, with which nothing could be published (MQTT 5, 3.2.2.3).
    """
    limits = answer.properties
    if 0 in {limits.get(Property.RECEIVE_MAXIMUM), limits.get(Property.MAXIMUM_PACKET_SIZE)}:
        raise MalformedPacketError("the broker sent a Receive Maximum or Maximum Packet Size of 0")
    return Welcome(
        resumed=answer.session_present,
        receive_maximum=limits.get(Property.RECEIVE_MAXIMUM, 65_535),
        maximum_packet_bytes=limits.get(Property.MAXIMUM_PACKET_SIZE, 268_435_455),
        maximum_qos=min(1, limits.get(Property.MAXIMUM_QOS, 1)),
        retain=bool(limits.get(Property.RETAIN_AVAILABLE, 1)),
        keepalive_s=limits.get(Property.SERVER_KEEP_ALIVE, keepalive_s),
        client_id=limits.get(Property.ASSIGNED_CLIENT_IDENTIFIER, client_id),
        version_5=version_5,
    )


class End(enum.Enum):
    """Progress of a connection at its end."""

    SILENT = "the broker closed it without an answer to our CONNECT"
    UNANSWERED = "we closed it: the broker did not answer our CONNECT in time, or not as our version says"
    OLD_PROTOCOL = "it refused our protocol version"
    REFUSED = "it refused us for another reason"
    WELCOMED = "it had welcomed us"
    GIVEN_UP = "it had welcomed us, and we closed it: it did not answer in time, or a packet is too large"
    TAKEN_OVER = "another client uses our client id"


class Listener(Protocol):
    """Receiver of a session's events, called on the event loop's thread.

    The packets of one read are handled between `batch_began` and `batch_ended`. While `in_batch` is True, the owner
    flushes the session at the end.
    """

    in_batch: bool

    def batch_began(self) -> object: ...
    def batch_ended(self) -> object: ...
    def welcomed(self, welcome: Welcome) -> None: ...
    def subscribed(self, codes: Sequence[int]) -> None: ...
    def unsubscribed(self, codes: Sequence[int]) -> None: ...
    def received(self, message: Message) -> None: ...
    def taken(self, mid: int, code: int) -> None: ...
    def answered(self) -> None: ...
    def writable(self) -> None: ...
    def lost(self, reason: str, end: End) -> None: ...
