"""Framing of a stream of MQTT packets (MQTT 5, 2.1), with a bound on their size. Pure: no I/O."""

from __future__ import annotations

LENGTH_BYTES = 4
"""Largest number of bytes of a remaining length (MQTT 5, 1.5.5)."""
TWO_BYTES = 3 + 127 * 128 + 127
"""Size of the largest packet whose remaining length has two bytes."""
FramedPacket = tuple[int, bytes]
"""First byte of a packet's fixed header, and what follows the fixed header."""


class MalformedPacketError(ValueError):
    """Packet that violates the protocol: the connection ends."""


class PacketTooLargeError(MalformedPacketError):
    """Announcement of a packet beyond the limit, or a remaining length that the protocol does not permit."""


class PacketReader:
    """Reader of packets. It keeps the bytes that arrived and were not taken."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._content, self._at = b"", 0
        """Bytes to read packets from, and the position of the next one."""
        self.may_have_packet = False
        """False if the next `take` cannot return a packet without another `feed`."""
        self._partial, self._needed = bytearray(), 0
        """Beginning of an incomplete packet, and the size from which it is worth another look; 0: there is none."""

    def feed(self, content: bytes) -> None:
        """Add the next bytes of the stream."""
        if self._needed:
            self._partial += content
            if len(self._partial) < self._needed:
                return
            content, self._needed = bytes(self._partial), 0
        elif self._at < len(self._content):
            content = self._content[self._at :] + content
        self._content, self._at = content, 0
        self.may_have_packet = bool(content)

    def take(self) -> FramedPacket | None:
        """Remove and return the next packet; None if it is not complete.

        Raises PacketTooLargeError at the fixed header of a packet beyond the limit.
        """
        content, at = self._content, self._at
        start = at + 2
        if start > len(content):
            self._wait(at + 2)
            return None
        length = content[at + 1]
        if length > 127:
            if start < len(content) and content[start] < 128 and self._limit_bytes > TWO_BYTES:
                length, start = length & 127 | content[start] << 7, start + 1
            else:
                length, start = self._long_length()
        stop = start + length
        if stop > len(content):
            self._wait(stop)
            return None
        self._at, self.may_have_packet = stop, stop < len(content)
        return content[at], content[start:stop]

    def _wait(self, stop: int) -> None:
        """Keep the beginning of a packet until bytes up to `stop` arrived."""
        if self._at < len(self._content):
            self._partial, self._needed = bytearray(self._content[self._at :]), stop - self._at
        self._content, self._at, self.may_have_packet = b"", 0, False

    def _long_length(self) -> tuple[int, int]:
        """Return the length of the next packet's body and its start, beyond the content if it is incomplete."""
        content, begin, length = self._content, self._at + 1, 0
        for place in range(LENGTH_BYTES):
            if begin + place >= len(content):
                return 0, len(content) + 1
            value = content[begin + place]
            length |= (value & 127) << (7 * place)
            if value < 128:
                size = 1 + place + 1 + length
                if size > self._limit_bytes:
                    problem = f"a packet of {size} bytes was announced; at most {self._limit_bytes} are read"
                    raise PacketTooLargeError(f"{problem} (4 times mqtt.max_payload_bytes)")
                return length, begin + place + 1
        raise PacketTooLargeError("the remaining length of a packet has more than four bytes")


def write_packet(first: int, *parts: bytes) -> bytes:
    """Return a packet with the first byte `first`, whose body consists of `parts`."""
    body = b"".join(parts)
    return bytes((first,)) + write_length(len(body)) + body


def write_length(value: int) -> bytes:
    """Return a variable byte integer (MQTT 5, 1.5.5)."""
    if value < 128:
        return bytes((value,))
    if value < 128 * 128:
        return bytes((value & 127 | 128, value >> 7))
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def write_text(text: str) -> bytes:
    """Return a UTF-8 string with its length (1.5.4). Surrogates, which UTF-8 lacks, become question marks."""
    return write_binary(text.encode(errors="replace"))


def write_binary(content: bytes) -> bytes:
    """Return bytes with their length (1.5.6). Raises ValueError beyond 65,535 bytes."""
    if len(content) > 0xFFFF:
        raise ValueError(f"a text of {len(content)} bytes does not fit into an MQTT packet; at most 65535 do")
    return len(content).to_bytes(2, "big") + content
