"""Properties of MQTT 5 packets (MQTT 5, 2.2.2). Pure: no I/O."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

from gateway.serving.frontends.mqtt.session.packets import MalformedPacketError, write_binary, write_length, write_text

Properties = Mapping[int, Any]
"""Values by identifier; USER_PROPERTY has a list of pairs."""


class Property(enum.IntEnum):
    """Identifiers that this client reads or writes (table 2-4)."""

    MESSAGE_EXPIRY_INTERVAL = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    SESSION_EXPIRY_INTERVAL = 0x11
    ASSIGNED_CLIENT_IDENTIFIER = 0x12
    SERVER_KEEP_ALIVE = 0x13
    WILL_DELAY_INTERVAL = 0x18
    REASON_STRING = 0x1F
    RECEIVE_MAXIMUM = 0x21
    MAXIMUM_QOS = 0x24
    RETAIN_AVAILABLE = 0x25
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27


REPEATABLE = frozenset({Property.SUBSCRIPTION_IDENTIFIER, Property.USER_PROPERTY})
"""Identifiers that a packet may contain more than once."""
Read = Callable[[bytes, int], tuple[Any, int]]
"""Reader of a value at a position; it returns the position behind it, too. Raises ValueError or IndexError."""


def read_properties(body: bytes, at: int) -> tuple[dict[int, Any], int]:
    """Return the properties at a position of a packet's body, and the position behind them.

    Raises MalformedPacketError.
    """
    found: dict[int, Any] = {}
    try:
        length, at = read_length(body, at)
        end = at + length
        while at < end:
            at = _read_one(body, at, found)
    except (ValueError, IndexError, KeyError) as error:
        raise MalformedPacketError(f"a packet has malformed properties ({error})") from None
    if at != end or end > len(body):
        raise MalformedPacketError("a packet has properties of a wrong length")
    return found, end


def write_properties(values: Mapping[Property, Any]) -> bytes:
    """Return properties with their length. Raises ValueError for texts beyond 65,535 bytes."""
    written = b"".join(_write_one(key, value) for key, value in values.items())
    return write_length(len(written)) + written


def read_length(body: bytes, at: int) -> tuple[int, int]:
    """Return the variable byte integer at a position, and the position behind it. Raises ValueError or IndexError."""
    value = 0
    for place in range(4):
        value |= (body[at + place] & 127) << (7 * place)
        if body[at + place] < 128:
            return value, at + place + 1
    raise ValueError("a length of more than four bytes")


def _read_one(body: bytes, at: int, found: dict[int, Any]) -> int:
    """Read one property into `found`. Return the position behind it."""
    key = body[at]
    value, at = _READERS[key](body, at + 1)
    if key == Property.USER_PROPERTY:
        found.setdefault(key, []).append(value)
    elif key in found and key not in REPEATABLE:
        raise ValueError(f"property 0x{key:02x} occurs twice")
    else:
        found[key] = value
    return at


def _integer(size: int) -> Read:
    """Return a reader of an integer of `size` bytes."""

    def read(body: bytes, at: int) -> tuple[int, int]:
        return int.from_bytes(_part(body, at, size), "big"), at + size

    return read


def _part(body: bytes, at: int, size: int) -> bytes:
    """Return `size` bytes. Raises ValueError if there are fewer."""
    found = body[at : at + size]
    if len(found) != size:
        raise ValueError("it ends too early")
    return found


def _binary(body: bytes, at: int) -> tuple[bytes, int]:
    size = int.from_bytes(_part(body, at, 2), "big")
    return _part(body, at + 2, size), at + 2 + size


def _text(body: bytes, at: int) -> tuple[str, int]:
    """Read a text. What is not UTF-8 becomes U+FFFD: brokers pass it on, and no client may end our connection so."""
    content, at = _binary(body, at)
    return content.decode(errors="replace"), at


def _topic(body: bytes, at: int) -> tuple[str, int]:
    """Read a topic. What is not UTF-8 becomes a surrogate, which no topic may hold: nothing is published there."""
    content, at = _binary(body, at)
    return content.decode(errors="surrogateescape"), at


def _pair(body: bytes, at: int) -> tuple[tuple[str, str], int]:
    name, at = _text(body, at)
    value, at = _text(body, at)
    return (name, value), at


def _write_one(key: Property, value: Any) -> bytes:
    first = bytes((key,))
    if key is Property.USER_PROPERTY:
        return b"".join(first + write_text(name) + write_text(text) for name, text in value)
    if key is Property.CORRELATION_DATA:
        return first + write_binary(value)
    if isinstance(value, str):
        return first + write_text(value)
    size = _SIZES[key]
    return first + int(value).to_bytes(size, "big")


_SIZES = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
}
"""Sizes of integers by identifier."""
_READERS: Mapping[int, Read] = {
    **{key: _integer(size) for key, size in _SIZES.items()},
    **dict.fromkeys((0x03, 0x12, 0x15, 0x1A, 0x1C, 0x1F), _text),
    Property.RESPONSE_TOPIC: _topic,
    **dict.fromkeys((0x09, 0x16), _binary),
    Property.SUBSCRIPTION_IDENTIFIER: read_length,
    Property.USER_PROPERTY: _pair,
}
"""Readers of all properties of the standard by identifier."""
