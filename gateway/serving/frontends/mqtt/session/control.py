"""Packets that this client sends and receives besides PUBLISH's content: values and their bytes. Pure: no I/O.

Sections are those of MQTT 5; MQTT 3.1.1 has the same packets without properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.serving.frontends.mqtt.messages import OutgoingPublish, Subscription
from gateway.serving.frontends.mqtt.session.packets import MalformedPacketError, write_binary, write_packet, write_text
from gateway.serving.frontends.mqtt.session.properties import Properties, Property, read_properties, write_properties

CONNECT, CONNACK, PUBLISH, PUBACK = 0x10, 0x20, 0x30, 0x40
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGRESP, DISCONNECT = 0x82, 0x90, 0xA2, 0xB0, 0xD0, 0xE0
KIND = 0xF0
"""Bits of the first byte that tell the kind of a packet (2.1.2)."""
QOS, QOS_1, RETAIN, DUP = 0x06, 0x02, 0x01, 0x08
"""Flags of a PUBLISH (3.3.1)."""
PING = b"\xc0\x00"
GOODBYE = b"\xe0\x00"
"""DISCONNECT with reason code 0, or that of MQTT 3.1.1: the broker does not publish the Will."""
NO_PROPERTIES = b"\0"
_LEVELS = {True: 5, False: 4}
"""Protocol levels by `version_5` (3.1.2.2)."""
_CLEAN, _WILL, _WILL_QOS, _WILL_RETAIN, _PASSWORD, _USER = 0x02, 0x04, 3, 0x20, 0x40, 0x80
_DO_NOT_SEND_RETAINED = 0x20
"""Retain Handling 2 of a subscription (3.8.3.1)."""


@dataclass(frozen=True, slots=True)
class ConnectOptions:
    """Content of a CONNECT. Expiry, Receive Maximum, packet size and Will Delay exist in MQTT 5 only."""

    client_id: str
    keepalive_s: int
    clean: bool
    username: str | None = None
    password: str | None = None
    will: OutgoingPublish | None = None
    will_delay_s: int = 0
    session_expiry_s: int = 0
    receive_maximum: int = 65_535
    max_packet_bytes: int = 268_435_455


@dataclass(frozen=True, slots=True)
class ConnectAnswer:
    """Content of a CONNACK."""

    session_present: bool
    code: int
    properties: Properties


def write_connect(options: ConnectOptions, *, version_5: bool) -> bytes:
    """Return a CONNECT (3.1)."""
    flags, parts = _CLEAN * options.clean, [write_text(options.client_id)]
    if (will := options.will) is not None:
        flags |= _WILL | will.qos << _WILL_QOS | _WILL_RETAIN * will.retain
        delay = write_properties({Property.WILL_DELAY_INTERVAL: options.will_delay_s}) if version_5 else b""
        parts += [delay, write_text(will.topic), write_binary(will.payload)]
    for flag, credential in ((_USER, options.username), (_PASSWORD, options.password)):
        if credential is not None:
            flags |= flag
            parts.append(write_text(credential))
    head = write_text("MQTT") + bytes((_LEVELS[version_5], flags)) + options.keepalive_s.to_bytes(2, "big")
    return write_packet(CONNECT, head, _connect_properties(options) if version_5 else b"", *parts)


def _connect_properties(options: ConnectOptions) -> bytes:
    return write_properties(
        {
            Property.SESSION_EXPIRY_INTERVAL: options.session_expiry_s,
            Property.RECEIVE_MAXIMUM: options.receive_maximum,
            Property.MAXIMUM_PACKET_SIZE: options.max_packet_bytes,
        }
    )


def read_connack(body: bytes, *, version_5: bool) -> ConnectAnswer:
    """Return the content of a CONNACK (3.2). Raises MalformedPacketError.

    A broker that does not know MQTT 5 answers with the two bytes of MQTT 3.1.1.
    """
    if len(body) < 2 or (len(body) > 2 and not version_5):
        raise MalformedPacketError("the broker sent a CONNACK of a wrong length")
    properties = read_properties(body, 2)[0] if len(body) > 2 else {}
    return ConnectAnswer(bool(body[0] & 1), body[1], properties)


def write_subscribe(mid: int, subscriptions: Sequence[Subscription], *, version_5: bool) -> bytes:
    """Return a SUBSCRIBE (3.8). Retained messages are requested by subscriptions with `retained` only (MQTT 5)."""
    parts = []
    for one in subscriptions:
        options = one.qos | (_DO_NOT_SEND_RETAINED if version_5 and not one.retained else 0)
        parts.append(write_text(one.filter) + bytes((options,)))
    return write_packet(SUBSCRIBE, mid.to_bytes(2, "big"), NO_PROPERTIES if version_5 else b"", *parts)


def read_suback(body: bytes, *, version_5: bool) -> tuple[int, list[int]]:
    """Return the packet id of a SUBACK (3.9) and the code of each subscription. Raises MalformedPacketError."""
    if len(body) < 3:
        raise MalformedPacketError("the broker sent a SUBACK without codes")
    start = read_properties(body, 2)[1] if version_5 else 2
    return int.from_bytes(body[:2], "big"), list(body[start:])


def write_unsubscribe(mid: int, filters: Sequence[str], *, version_5: bool) -> bytes:
    """Return an UNSUBSCRIBE (3.10)."""
    parts = map(write_text, filters)
    return write_packet(UNSUBSCRIBE, mid.to_bytes(2, "big"), NO_PROPERTIES if version_5 else b"", *parts)


def read_unsuback(body: bytes, *, version_5: bool) -> list[int]:
    """Return the code of each filter of an UNSUBACK (3.11); MQTT 3.1.1 has none. Raises MalformedPacketError."""
    if len(body) < (3 if version_5 else 2):
        raise MalformedPacketError("the broker sent an UNSUBACK that is too short")
    return list(body[read_properties(body, 2)[1] :]) if version_5 else []


def read_puback(body: bytes, *, version_5: bool) -> tuple[int, int]:
    """Return packet id and reason code of a PUBACK (3.4); its properties are not read. Raises MalformedPacketError."""
    if len(body) < 2 or (len(body) > 2 and not version_5):
        raise MalformedPacketError("the broker sent a PUBACK of a wrong length")
    return body[0] << 8 | body[1], body[2] if len(body) > 2 else 0


def write_puback(mid: int) -> bytes:
    """Return a PUBACK with reason code 0 (3.4)."""
    return b"\x40\x02" + mid.to_bytes(2, "big")


def read_disconnect(body: bytes) -> tuple[int, str]:
    """Return reason code and reason string of a DISCONNECT (3.14). Raises MalformedPacketError."""
    properties = read_properties(body, 1)[0] if len(body) > 1 else {}
    return body[0] if body else 0, properties.get(Property.REASON_STRING, "")


UNSUPPORTED_PROTOCOL, UNSUPPORTED_PROTOCOL_3_1_1 = 0x84, 1
SESSION_TAKEN_OVER = 0x8E

_MQTT_5 = {
    0x00: "normal disconnection",
    0x80: "unspecified error",
    0x81: "malformed packet",
    0x82: "protocol error",
    0x83: "implementation specific error",
    0x84: "unsupported protocol version",
    0x85: "client identifier not valid",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x88: "server unavailable",
    0x89: "server busy",
    0x8A: "banned",
    0x8B: "server shutting down",
    0x8C: "bad authentication method",
    0x8D: "keep alive timeout",
    0x8E: "session taken over",
    0x8F: "topic filter invalid",
    0x90: "topic name invalid",
    0x93: "receive maximum exceeded",
    0x94: "topic alias invalid",
    0x95: "packet too large",
    0x96: "message rate too high",
    0x97: "quota exceeded",
    0x98: "administrative action",
    0x99: "payload format invalid",
    0x9A: "retain not supported",
    0x9B: "QoS not supported",
    0x9C: "use another server",
    0x9D: "server moved",
    0x9E: "shared subscriptions not supported",
    0x9F: "connection rate exceeded",
    0xA0: "maximum connect time",
    0xA1: "subscription identifiers not supported",
    0xA2: "wildcard subscriptions not supported",
}
_MQTT_3_1_1 = {
    1: "unsupported protocol version",
    2: "client identifier not valid",
    3: "server unavailable",
    4: "bad user name or password",
    5: "not authorized",
}


def reason_name(code: int, *, version_5: bool, text: str = "") -> str:
    """Return the name of a code, with the reason string of the broker if it sent one."""
    name = (_MQTT_5 if version_5 else _MQTT_3_1_1).get(code, f"reason code 0x{code:02x}")
    return f"{name} ({text:.200})" if text else name
