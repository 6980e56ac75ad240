"""Bound on the packets of a peer, by their fixed headers (MQTT 5, 2.1). Pure: no I/O."""

from __future__ import annotations

LENGTH_BYTES = 4
"""Largest number of bytes of a remaining length (MQTT 5, 1.5.5)."""


class PacketTooLargeError(ValueError):
    """Packet beyond the limit, or a remaining length that the protocol does not permit."""


class PacketGuard:
    """Reader of fixed headers in a stream of bytes. It keeps no bytes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._header_bytes = 0
        """Bytes of the current packet's fixed header so far; 0 before its first byte."""
        self._body_bytes = 0
        """Bytes that are left of the current packet after its fixed header, or the remaining length so far."""
        self._in_body = False

    def read(self, content: bytes) -> None:
        """Follow the next bytes of the stream. Raises PacketTooLargeError at the end of a refused fixed header."""
        at = 0
        while at < len(content):
            if self._in_body:
                at += self._skip(len(content) - at)
            else:
                self._read_header(content[at])
                at += 1

    def _skip(self, most_bytes: int) -> int:
        skipped = min(most_bytes, self._body_bytes)
        self._body_bytes -= skipped
        if not self._body_bytes:
            self._begin()
        return skipped

    def _read_header(self, value: int) -> None:
        self._header_bytes += 1
        if self._header_bytes == 1:
            return
        self._body_bytes += (value & 127) << 7 * (self._header_bytes - 2)
        if not value & 128:
            self._end_header()
        elif self._header_bytes > LENGTH_BYTES:
            raise PacketTooLargeError("the remaining length of a packet has more than four bytes")

    def _end_header(self) -> None:
        size = self._header_bytes + self._body_bytes
        if size > self._limit_bytes:
            problem = f"a packet of {size} bytes was announced; at most {self._limit_bytes} are read"
            raise PacketTooLargeError(f"{problem} (mqtt.max_packet_bytes)")
        self._in_body = True
        if not self._body_bytes:
            self._begin()

    def _begin(self) -> None:
        self._header_bytes, self._body_bytes, self._in_body = 0, 0, False
