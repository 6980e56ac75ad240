"""Field blocks: assembled from their frames, and decoded once.

A gRPC client's calls differ little: once its table is filled, every call's block is the same few index bytes. The
meaning of a block is remembered until the table changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.hpack import Decoder, Headers
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.requests import BAD_VALUE, content_length, essential
from gateway.serving.frontends.grpc_v2.http2.shapes import check_dependency
from gateway.serving.frontends.grpc_v2.http2.work import BLOCK_NS, CHECK_NS, PARSE_NS, Meter

KNOWN_HEADERS = 64
"""Blocks remembered per connection; a client has about one per method and deadline."""
KNOWN_BLOCK_BYTES = 256
"""Longest block that is remembered: repeated blocks consist of index bytes, and other ones must not fill memory."""
ESSENCE_BYTES = 512
"""Longest remembered fields: names and values of a gRPC call with a token have about 250 bytes."""
DEPENDS = frozenset({b"content-length"})
"""Names of fields with a meaning apart from parsed headers."""
Shape = tuple[list[slice], list[bytes], list[slice], tuple[Any, int | None]]
"""Blocks of one length: where all but their varied values is, what it is there, where these are, and what they mean."""
SIZE_FACTOR = 4
"""Factor of the header list limit above which a block ends the connection; a smaller one ends its stream only."""


class Blocks:
    """Decoder of field blocks with a memory of known ones.

    `known`: parsed headers and announced bytes by block, as `parsed` returns them. `unfinished`: a block has begun and
    not ended; only CONTINUATION may follow (RFC 9113, section 6.10).
    """

    def __init__(
        self, limits: Http2Limits, parse: Callable[[Headers], Any], names: frozenset[bytes], meter: Meter | None = None
    ) -> None:
        self._limits, self._parse, self._names, self._meter = limits, parse, names, meter or Meter()
        self._decoder = Decoder(limits.max_header_bytes, self._meter)
        self.known: dict[bytes, tuple[Any, int | None]] = {}
        self._essences: dict[Headers, Any] = {}
        self._shapes: dict[int, Shape] = {}
        self.unfinished = False
        self._stream = self._flags = self._continuations = 0
        self._parts = bytearray()

    def begin(self, flags: int, number: int, payload: memoryview) -> None:
        """Store a HEADERS frame that CONTINUATION follows."""
        self.unfinished = True
        self._stream, self._flags, self._continuations = number, flags, 0
        self._parts = bytearray(payload)

    def go_on(self, flags: int, number: int, payload: memoryview) -> tuple[int, bytes] | None:
        """Add a CONTINUATION frame. Return the first frame's flags and the whole block if it was the last."""
        if not self.unfinished or number != self._stream:
            raise ProtocolError(Code.PROTOCOL_ERROR, "CONTINUATION without a beginning")
        self._parts += payload
        self._continuations += 1
        most = SIZE_FACTOR * self._limits.max_header_bytes
        if self._continuations > self._limits.max_continuations or len(self._parts) > most:
            raise ProtocolError(Code.ENHANCE_YOUR_CALM, "a field block without end")
        if not flags & frames.END_HEADERS:
            return None
        self.unfinished = False
        return self._flags, bytes(self._parts)

    def parsed(self, block: bytes) -> tuple[Any, int | None] | None:
        """Return the parsed headers of a request's block, and the number of bytes that its content-length announces.

        Return None if its list is too large. Raises as `parse` and `content_length` do.
        """
        self._meter.ns += BLOCK_NS
        known = self.known.get(block) or self._like_before(block)
        if known is not None:
            return known
        headers = self.skim(block)
        if headers is None:
            return None
        self._meter.ns += CHECK_NS * len(headers)
        parsed = self._read(headers)
        known = parsed, content_length(headers)
        if not (self._decoder.changed or len(block) > KNOWN_BLOCK_BYTES or _refuses(parsed)):
            names = self._names
            varied = [slice(start, end) for name, start, end in self._decoder.literals if name not in names | DEPENDS]
            if varied and essential(headers, names) is not None:
                edges = [0, *[edge for each in varied for edge in (each.start, each.stop)], len(block)]
                fixed = [slice(*edges[index : index + 2]) for index in range(0, len(edges), 2)]
                self._shapes[len(block)] = fixed, [block[part] for part in fixed], varied, known
            else:
                _remember(self.known, block, known)
        return known

    def _like_before(self, block: bytes) -> tuple[Any, int | None] | None:
        """Return the meaning of a block that differs from an earlier one in values without a meaning here."""
        shape = self._shapes.get(len(block))
        if shape is None or [block[part] for part in shape[0]] != shape[1]:
            return None
        for part in shape[2]:
            self._meter.ns += CHECK_NS
            if BAD_VALUE.search(block[part]):
                return None
        return shape[3]

    def _read(self, headers: Headers) -> Any:
        """Return parsed headers by the fields on which they depend.

        Other fields may differ per request, as a trace number does.
        """
        essence = essential(headers, self._names)
        known = None if essence is None else self._essences.get(essence)
        if known is not None:
            return known
        self._meter.ns += PARSE_NS
        parsed = self._parse(headers)
        known_bytes = 0 if essence is None else sum(len(name) + len(value) for name, value in essence)
        if essence is not None and known_bytes <= ESSENCE_BYTES and not _refuses(parsed):
            _remember(self._essences, essence, parsed)
        return parsed

    def forget_parsed(self) -> None:
        """Forget all parsed headers: something on which they depend, apart from their fields, has changed."""
        self.known.clear()
        self._shapes.clear()
        self._essences.clear()

    def skim(self, block: bytes) -> Headers | None:
        """Update the table by a block, and return the block's fields."""
        headers = self._decoder.decode(block)
        if self._decoder.changed:
            self.known.clear()
            self._shapes.clear()
        return headers


def _refuses(parsed: object) -> bool:
    """Return True for a refusal, which is not remembered: each refusal is decided and counted again."""
    return isinstance(parsed, bytes)


def _remember(known: dict[Any, Any], key: object, parsed: object) -> None:
    if len(known) >= KNOWN_HEADERS:
        known.clear()
    known[key] = parsed


def fragment(flags: int, number: int, payload: memoryview) -> memoryview:
    """Return the payload of HEADERS without padding and priority (section 6.2)."""
    padding = 0
    if flags & frames.PADDED:
        if not payload:
            raise ProtocolError(Code.FRAME_SIZE_ERROR, "HEADERS without the padding's length")
        padding, payload = payload[0], payload[1:]
    skip = frames.PRIORITY_BYTES if flags & frames.PRIORITISED else 0
    if skip > len(payload):
        raise ProtocolError(Code.FRAME_SIZE_ERROR, "HEADERS without the priority that they announce")
    if skip + padding > len(payload):
        raise ProtocolError(Code.PROTOCOL_ERROR, "padding longer than its frame")
    if skip:
        check_dependency(number, payload)
    return payload[skip : len(payload) - padding]
