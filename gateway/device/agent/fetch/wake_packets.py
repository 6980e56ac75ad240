"""Subset of MQTT 3.1.1 for wake hints, without I/O: subscribe to one topic, detect messages.

paho-mqtt would work (26 MiB asleep, against 22 with TLS and this module), but accepts packets of 256 MiB from a broker
that is not trusted. Here packets are bounded, and only the arrival of a message is kept.
https://docs.oasis-open.org/mqtt/mqtt/v3.1.1/os/mqtt-v3.1.1-os.html
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

PACKET_LIMIT_BYTES = 8_192
"""Limit of a packet from a broker. A hint is empty, and its payload is ignored."""
PINGREQ = b"\xc0\x00"
_LENGTH_BYTES = 4
_SUBSCRIBE_ID = 1


class PacketKind(enum.IntEnum):
    """Packets that a broker may send to this client (MQTT 3.1.1, 2.2.1)."""

    CONNACK = 2
    PUBLISH = 3
    SUBACK = 9
    PINGRESP = 13


class WireError(Exception):
    """The broker violates the protocol or refuses the connection: disconnect."""


@dataclass(frozen=True, slots=True)
class Packet:
    """Received packet. `answer`: bytes to send back (b"": none)."""

    kind: PacketKind
    answer: bytes = b""


def connect(client: str, keepalive_s: int) -> bytes:
    """Return a CONNECT with a persistent session: hints sent during a disconnection are delivered later (3.1)."""
    head = _text("MQTT") + bytes((4, 0)) + min(keepalive_s, 0xFFFF).to_bytes(2, "big")
    return _packet(0x10, head + _text(client))


def subscribe(topic: str) -> bytes:
    """Return a SUBSCRIBE with quality of service 1 (3.8)."""
    return _packet(0x82, _SUBSCRIBE_ID.to_bytes(2, "big") + _text(topic) + b"\x01")


class Reader:
    """Incremental parser of packets."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, content: bytes) -> list[Packet]:
        """Return the packets that are complete now. Raise WireError."""
        self._buffer += content
        found = []
        while (packet := self._next()) is not None:
            found.append(packet)
        return found

    def _next(self) -> Packet | None:
        length, start = _length(self._buffer)
        if length > PACKET_LIMIT_BYTES:
            raise WireError(f"a packet of {length} bytes, at most {PACKET_LIMIT_BYTES} are read")
        if not start or len(self._buffer) < start + length:
            return None
        head, body = self._buffer[0], bytes(self._buffer[start : start + length])
        del self._buffer[: start + length]
        return _read(head, body)


def _read(head: int, body: bytes) -> Packet:
    try:
        kind = PacketKind(head >> 4)
    except ValueError:
        raise WireError(f"a packet of kind {head >> 4} was not asked for") from None
    if kind is PacketKind.CONNACK and (len(body) != 2 or body[1]):
        raise WireError(f"the broker refuses the connection ({body[1:].hex() or 'no'} code)")
    if kind is PacketKind.SUBACK and (len(body) != 3 or body[2] > 1):
        raise WireError("the broker refuses the subscription; see that this device may read the topic")
    if kind is PacketKind.PUBLISH:
        return Packet(kind, _acknowledgement(head, body))
    return Packet(kind)


def _acknowledgement(head: int, body: bytes) -> bytes:
    quality = (head >> 1) & 3
    if quality > 1:
        raise WireError(f"a message of quality {quality}, 1 was asked for")
    end = 2 + int.from_bytes(body[:2], "big") + 2 * quality
    if len(body) < end:
        raise WireError("an incomplete message")
    return _packet(0x40, body[end - 2 : end]) if quality else b""


def _length(buffer: bytearray) -> tuple[int, int]:
    """Return the length of a packet's body and its start; 0 if not enough bytes came yet (2.2.3)."""
    length = 0
    for place, value in enumerate(buffer[1 : 1 + _LENGTH_BYTES]):
        length |= (value & 0x7F) << (7 * place)
        if value < 0x80:
            return length, place + 2
    if len(buffer) > _LENGTH_BYTES:
        raise WireError("a length field of more than four bytes")
    return 0, 0


def _packet(head: int, body: bytes) -> bytes:
    length, rest = bytearray(), len(body)
    while True:
        rest, digit = divmod(rest, 128)
        length.append(digit | (0x80 if rest else 0))
        if not rest:
            return bytes((head,)) + bytes(length) + body


def _text(value: str) -> bytes:
    content = value.encode()
    return len(content).to_bytes(2, "big") + content
