"""Framing of a stream of MQTT packets (MQTT 5, 2.1), with a bound on their size. Pure: no I/O."""

from __future__ import annotations

from typing import NamedTuple

LENGTH_BYTES = 4
"""Largest number of bytes of a remaining length (MQTT 5, 1.5.5)."""


class PacketTooLargeError(ValueError):
    """Announcement of a packet beyond the limit, or a remaining length that the protocol does not permit."""


class FramedPacket(NamedTuple):
    """FramedPacket: the first byte of its fixed header, and what follows the fixed header."""

    first: int
    body: bytes


class PacketReader:
    """Reader of packets. It keeps the bytes that arrived and were not taken."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._content = bytearray()
        self._at = 0
        """Position of the next packet."""
        self._needs_more = True

    @property
    def may_have_packet(self) -> bool:
        """Return False if the next `take` cannot return a packet without another `feed`."""
        return not self._needs_more

    def feed(self, content: bytes) -> None:
        """Add the next bytes of the stream."""
        if self._at:
            del self._content[: self._at]
            self._at = 0
        self._content += content
        self._needs_more = False

    def take(self) -> FramedPacket | None:
        """Remove and return the next packet; None if it is not complete.

        Raises PacketTooLargeError at the fixed header of a packet beyond the limit.
        """
        body = self._find_body()
        if body is None or body.stop > len(self._content):
            self._needs_more = True
            return None
        with memoryview(self._content) as view:
            packet = FramedPacket(view[self._at], bytes(view[body.start : body.stop]))
        self._at = body.stop
        self._needs_more = self._at == len(self._content)
        return packet

    def _find_body(self) -> range | None:
        """Return where the body of the next packet is or will be; None if its fixed header is not complete."""
        content, at, length, shift = self._content, self._at + 1, 0, 0
        while at < len(content):
            value = content[at]
            at += 1
            length |= (value & 127) << shift
            if value < 128:
                self._check(at - self._at + length)
                return range(at, at + length)
            shift += 7
            if shift == 7 * LENGTH_BYTES:
                raise PacketTooLargeError("the remaining length of a packet has more than four bytes")
        return None

    def _check(self, size: int) -> None:
        if size > self._limit_bytes:
            problem = f"a packet of {size} bytes was announced; at most {self._limit_bytes} are read"
            raise PacketTooLargeError(f"{problem} (mqtt.max_packet_bytes)")
