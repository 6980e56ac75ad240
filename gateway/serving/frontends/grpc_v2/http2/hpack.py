"""HPACK (RFC 7541): header blocks to header lists, and blocks to send.

Sent blocks never use the peer's table, so that they are constants.
"""

from __future__ import annotations

from collections import deque

from gateway.serving.frontends.grpc_v2.http2 import huffman
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.work import FIELD_NS, HUFFMAN_NS, LITERAL_NS, TABLE_NS, Meter

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]

TABLE_BYTES = 4096
"""Bound of the dynamic table. No other is ever announced (RFC 9113, section 6.5.2: the default)."""
ENTRY_BYTES = 32
"""Size of an entry in addition to its name and value (RFC 7541, section 4.1)."""
SIZE_FACTOR = 4
"""Factor of the limit above which a header list ends the connection.

Index bytes of an entry of 4 KiB expand to 64 MiB per 16 KiB block (the "HPACK bomb", CVE-2016-6581).
"""
INTEGER_LIMIT = 2**31
MOST_RESIZES = 4
"""Most changes of the table's size with which one block may begin; an encoder needs two (RFC 7541, section 4.2)."""

_APPENDIX_A = """
    :authority; :method=GET; :method=POST; :path=/; :path=/index.html; :scheme=http; :scheme=https;
    :status=200; :status=204; :status=206; :status=304; :status=400; :status=404; :status=500; accept-charset;
    accept-encoding=gzip, deflate; accept-language; accept-ranges; accept; access-control-allow-origin; age;
    allow; authorization; cache-control; content-disposition; content-encoding; content-language;
    content-length; content-location; content-range; content-type; cookie; date; etag; expect; expires; from;
    host; if-match; if-modified-since; if-none-match; if-range; if-unmodified-since; last-modified; link;
    location; max-forwards; proxy-authenticate; proxy-authorization; range; referer; refresh; retry-after;
    server; set-cookie; strict-transport-security; transfer-encoding; user-agent; vary; via; www-authenticate
"""
STATIC: tuple[Header, ...] = tuple(
    (name.encode(), value.encode())
    for name, _, value in (entry.strip().partition("=") for entry in _APPENDIX_A.split(";"))
)
"""Static table of appendix A, index 1 first."""


class Decoder:
    """Dynamic table of one connection. `limit_bytes` bounds a header list, as SETTINGS_MAX_HEADER_LIST_SIZE counts it.

    `changed`: the last block changed the table. A block that did not keeps its meaning until another does. `literals`:
    name, begin and end of the values in the last block that are in no table and not in Huffman's code.
    """

    def __init__(self, limit_bytes: int, meter: Meter | None = None) -> None:
        self._limit_bytes, self._meter = limit_bytes, meter or Meter()
        self._entries: deque[Header] = deque()
        self._used_bytes, self._most_bytes = 0, TABLE_BYTES
        self.changed, self._coded = False, False
        self.literals: list[tuple[bytes, int, int]] = []

    def decode(self, block: bytes) -> Headers | None:
        """Return the header list, or None if it exceeds the limit (the table is updated in both cases).

        Raises ProtocolError COMPRESSION_ERROR, after which no block of the connection can be decoded, and
        ENHANCE_YOUR_CALM for a list far above the limit.
        """
        self.changed, self.literals = False, []
        try:
            return self._read(block)
        except IndexError:
            raise _broken("a field block ends too soon") from None

    def _read(self, block: bytes) -> Headers | None:
        headers: list[Header] = []
        place = size = fields = resizes = 0
        while place < len(block):
            fields += 1
            first = block[place]
            if 0x80 < first <= 0x80 | len(STATIC):  # the common case: an index in one byte, of the static table
                header, place = STATIC[(first & 0x7F) - 1], place + 1
            elif first & 0x80:
                index, place = _integer(block, place, 7)
                header = self._entry(index)
            elif first & 0xE0 == 0x20:
                resizes += 1
                if size or resizes > MOST_RESIZES:
                    raise _broken("the table's size changes within a field block, or too often before it")
                most, place = _integer(block, place, 5)
                if most > TABLE_BYTES:
                    raise _broken(f"a table of {most} bytes was not offered")
                self.changed, self._most_bytes = True, most
                self._meter.ns += TABLE_NS
                self._evict()
                continue
            else:
                header, place = self._literal(block, place, 6 if first & 0x40 else 4)
                if first & 0x40:
                    self.changed = True
                    self._meter.ns += TABLE_NS
                    self._entries.appendleft(header)
                    self._used_bytes += len(header[0]) + len(header[1]) + ENTRY_BYTES
                    self._evict()
            size += len(header[0]) + len(header[1]) + ENTRY_BYTES
            # Beyond the limit decoding goes on, without the headers: the table must stay equal to the peer's
            # (RFC 7541, section 4), or all later blocks of the connection would be wrong.
            if size <= self._limit_bytes:
                headers.append(header)
            elif size > SIZE_FACTOR * self._limit_bytes:
                raise ProtocolError(Code.ENHANCE_YOUR_CALM, "a field block decodes to more than the limit")
        self._meter.ns += fields * FIELD_NS
        return tuple(headers) if size <= self._limit_bytes else None

    def _entry(self, index: int) -> Header:
        if 0 < index <= len(STATIC):
            return STATIC[index - 1]
        if not len(STATIC) < index <= len(STATIC) + len(self._entries):
            raise _broken(f"header index {index} is not in the table")
        return self._entries[index - len(STATIC) - 1]

    def _literal(self, block: bytes, place: int, bits: int) -> tuple[Header, int]:
        index, place = _integer(block, place, bits)
        if index:
            name = self._entry(index)[0]
        else:
            name, place = self._string(block, place)
        value, place = self._string(block, place)
        if bits == 4 and not self._coded:
            self.literals.append((name, place - len(value), place))
        self._meter.ns += LITERAL_NS
        return (name, value), place

    def _string(self, block: bytes, place: int) -> tuple[bytes, int]:
        coded = self._coded = bool(block[place] & 0x80)
        length, place = _integer(block, place, 7)
        end = place + length
        if end > len(block):
            raise _broken("a header string ends after its block")
        string = block[place:end]
        if coded:
            self._meter.ns += length * HUFFMAN_NS
            string = huffman.decode(string)
        return string, end

    def _evict(self) -> None:
        while self._used_bytes > self._most_bytes:
            name, value = self._entries.pop()
            self._used_bytes -= len(name) + len(value) + ENTRY_BYTES


def encode(headers: Headers) -> bytes:
    """Return a block of literals that no table remembers (section 6.2.2): it can be decoded at any time."""
    block = bytearray()
    for name, value in headers:
        if pair := _STATIC_PAIRS.get((name, value)):
            block.append(0x80 | pair)
            continue
        index = _STATIC_NAMES.get(name)
        block += b"\x00" + _prefixed(name) if index is None else _number(index, 4)
        block += _prefixed(value)
    return bytes(block)


_STATIC_PAIRS = {header: index for index, header in enumerate(STATIC, 1) if header[1]}
_STATIC_NAMES = {name: index for index, (name, _) in reversed(list(enumerate(STATIC, 1)))}


def _prefixed(string: bytes) -> bytes:
    return _number(len(string), 7) + string


def _number(value: int, bits: int) -> bytes:
    """Return an integer with a prefix of `bits` and zeros before it (section 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([value])
    value -= most
    coded = bytearray([most])
    while value >= 0x80:
        coded.append(value & 0x7F | 0x80)
        value >>= 7
    coded.append(value)
    return bytes(coded)


def _integer(block: bytes, place: int, bits: int) -> tuple[int, int]:
    most = (1 << bits) - 1
    value = block[place] & most
    place += 1
    if value < most:
        return value, place
    shift = 0
    while True:
        byte = block[place]
        place += 1
        value += (byte & 0x7F) << shift
        if value > INTEGER_LIMIT or shift > 28:  # leading zeros could go on forever (RFC 7541, section 5.1)
            raise _broken("an integer is too large")
        if byte < 0x80:
            return value, place
        shift += 7


def _broken(problem: str) -> ProtocolError:
    return ProtocolError(Code.COMPRESSION_ERROR, problem)
