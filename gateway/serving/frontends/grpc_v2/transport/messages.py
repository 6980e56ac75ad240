"""Messages of a request's body (gRPC's "Length-Prefixed-Message"), each assembled in memory of its own size."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Raw, Steps
from gateway.serving.frontends.grpc_v2.calls import CallInfo
from gateway.serving.frontends.grpc_v2.framing import PREFIX
from gateway.serving.frontends.grpc_v2.service.message_memory import (
    MESSAGE_BYTES,
    MemoryShare,
    MessageMemory,
    too_large,
)

BEGINNING_BYTES = 512
"""Length of a message's beginning that names its model."""
LARGE_BYTES = 1024 * 1024
"""Size above which a message is checked against its model by its beginning; others are checked once complete."""
STEP_BYTES = 256 * 1024
"""Bytes decompressed in one step: 0.5 ms."""


@dataclass(slots=True)
class ReceivedMessage:
    """A message. `content` is as received; `compressed` by the encoding that the headers name."""

    content: Raw
    compressed: bool


class Incoming:
    """Messages of one stream. `missing` bytes of the one that has begun are still to come (0: none has)."""

    __slots__ = (
        "_asks",
        "_body",
        "_compressed",
        "_counted",
        "_filled",
        "_info",
        "_lead",
        "_limit_bytes",
        "_message_memory",
        "_most_bytes",
        "_over",
        "_prefix",
        "_share",
        "begun_ns",
        "missing",
    )

    def __init__(
        self,
        limit_bytes: int,
        message_memory: MessageMemory,
        lead: Callable[[int], int],
        info: CallInfo,
        most_bytes: Callable[[Raw], int] | None = None,
    ) -> None:
        """Set the bounds. Messages count in the share of `info`'s caller.

        `lead` returns the offset of the first tensor in a message of that many bytes, so that it is aligned.
        `most_bytes` returns how large a message may be that begins with the given BEGINNING_BYTES. It is called for
        large messages.
        """
        self._limit_bytes, self._message_memory = limit_bytes, message_memory
        self._lead, self._most_bytes = lead, most_bytes
        self._info = info
        self._prefix = b""
        self._body, self._share = memoryview(b""), MemoryShare(message_memory.pool, info)
        self._filled = self._counted = self.missing = 0
        self._compressed = self._over = self._asks = False
        self.begun_ns: int | None = None
        """Time since which part of a message is here; None if there is none."""

    def feed(self, parts: Sequence[memoryview], now_ns: int) -> Iterator[ReceivedMessage]:
        """Yield every message that `parts` complete.

        Raises RequestError TOO_LARGE, OVERLOADED, or INTERNAL for an unknown flag. After an error, and after `close`,
        further bytes are ignored.
        """
        for part in parts:
            left = part
            while left and not self._over:
                if self.begun_ns is None:
                    self.begun_ns = now_ns
                size, begin = len(left), self._filled
                if size < self.missing and not self._asks:  # the middle of a large message: its parts are many
                    self._body[begin : begin + size] = left
                    self._filled, self.missing = begin + size, self.missing - size
                    break
                left = left[self._fill(left) if self.missing else self._read_prefix(left) :]
                if not self.missing and len(self._prefix) == PREFIX.size:
                    self._count()
                    message = ReceivedMessage(self._body, self._compressed)
                    self._prefix, self._body, self.begun_ns = b"", memoryview(b""), None
                    yield message
                    del message  # its memory is counted until no reference to it is left
        if self.missing:
            self._count()

    def _read_prefix(self, part: memoryview) -> int:
        """Read the rest of a message's prefix. Return the bytes used."""
        used = PREFIX.size - len(self._prefix)
        self._prefix += bytes(part[:used])
        if len(self._prefix) < PREFIX.size:
            return used
        flag, size = PREFIX.unpack(self._prefix)
        try:
            self._body, self._share = self._memory(flag, size)
        except RequestError:
            self.close()  # further bytes cannot be separated from the refused message's content
            raise
        self._compressed, self._filled, self._counted, self.missing = bool(flag), 0, -MESSAGE_BYTES, size
        self._asks = size > LARGE_BYTES
        return used

    def _memory(self, flag: int, size: int) -> tuple[memoryview, MemoryShare]:
        if flag > 1:
            raise RequestError(Fault.INTERNAL, f"a message begins with the unknown flag {flag}")
        if size > self._limit_bytes:
            raise too_large(size, self._limit_bytes)
        return self._message_memory.take(size, self._lead(size), self._info)

    def _fill(self, part: memoryview) -> int:
        """Add content of a message. Return the bytes used."""
        size, begin = min(len(part), self.missing), self._filled
        self._body[begin : begin + size] = part[:size]
        self._filled = begin + size
        self.missing -= size
        if self._asks and self._filled >= BEGINNING_BYTES:
            self._check_beginning()
        return size

    def close(self) -> None:
        """Ignore all further bytes."""
        self._over, self.missing = True, 0
        self._body, self.begun_ns = memoryview(b""), None

    def _count(self) -> None:
        """Count the bytes that have come since the last time."""
        new, self._counted = self._filled - self._counted, self._filled
        try:
            self._share.grow(new)
        except RequestError:
            self.close()
            raise

    def _check_beginning(self) -> None:
        """Refuse a message in transit that is larger than its model accepts.

        Raises RequestError TOO_LARGE, and the errors of its model.
        """
        self._asks = False
        if self._most_bytes is None or self._compressed:
            return
        try:
            most, size = self._most_bytes(self._body[:BEGINNING_BYTES]), len(self._body)
            if size > most:
                raise too_large(size, most, of_model=True)
        except RequestError:
            self.close()
            raise


def inflate_steps(
    content: Raw, window_bits: int, limit_bytes: int, most_bytes: Callable[[Raw], int] | None = None
) -> Steps[bytes]:
    """Decompress a message of at most `limit_bytes`, and the size that `most_bytes` returns for its beginning.

    Raises RequestError TOO_LARGE; INTERNAL if it is broken or its headers named no compression.
    """
    if not window_bits:
        raise RequestError(Fault.INTERNAL, "a message is marked as compressed, but grpc-encoding names no compression")
    inflater = zlib.decompressobj(window_bits)
    inflated, left, step, of_model = bytearray(), content, BEGINNING_BYTES, False
    try:
        while True:
            part = inflater.decompress(left, step)
            inflated += part
            left = inflater.unconsumed_tail
            if most_bytes is not None and len(inflated) >= BEGINNING_BYTES:
                most, most_bytes = most_bytes(bytes(inflated[:BEGINNING_BYTES])), None
                limit_bytes, of_model = min(limit_bytes, most), most < limit_bytes
            if len(inflated) > limit_bytes:
                raise too_large(len(inflated), limit_bytes, of_model=of_model)
            if inflater.eof or not (left or len(part) == step):
                break
            if step == STEP_BYTES:
                yield
            step = STEP_BYTES
    except zlib.error as error:
        raise RequestError(Fault.INTERNAL, f"a compressed message cannot be read: {error}") from None
    if not inflater.eof:
        raise RequestError(Fault.INTERNAL, "a compressed message ends too soon")
    if inflater.unused_data:
        raise RequestError(Fault.INTERNAL, "a compressed message continues after its end")
    return bytes(inflated)
