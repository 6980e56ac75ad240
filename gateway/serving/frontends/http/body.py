"""Request bodies: read within limits of size, time and memory, decompressed within the same limits."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import STEP_BYTES, Steps, finish
from gateway.common.timeouts import Timeout, timeout
from gateway.serving.domain.ports import Decoding
from gateway.serving.frontends import settings
from gateway.serving.frontends.http.admission import Admitted
from gateway.serving.frontends.http.bounds import Bounds, SlowBody
from gateway.serving.frontends.pools import Pool

Receive = Callable[[], Awaitable[Mapping[str, Any]]]

ENCODINGS = ("identity", "gzip", "deflate")
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
"""Window bits of zlib for "gzip or zlib, see the header": HTTP's deflate is the zlib format (RFC 9110, 8.4.1.2)."""
COUNTED_BYTES = 1024 * 1024
"""Bytes that a body may grow by before they are counted in its caller's share."""
COMPRESSED_BYTES = 64 * 1024
"""Bytes that one step compresses: about 1 ms at level 1."""


class ClientGone(Exception):  # noqa: N818  not an error of the gateway: there is no client left
    """The client closed the connection before the answer."""


@dataclass(frozen=True, slots=True)
class Most:
    """Limit of a body, before and after decompression, with the remedy for a larger one."""

    limit_bytes: int
    advice: str = "send less"

    def check_length(self, length: str | None) -> None:
        """Refuse a Content-Length above the limit. Raises RequestError TOO_LARGE."""
        if length is not None and length.isdecimal() and int(length[:20]) > self.limit_bytes:
            raise self.too_large()

    def too_large(self, what: str = "") -> RequestError:
        """Return the refusal of a body above the limit."""
        return RequestError(
            Fault.TOO_LARGE, f"the {what}request body is larger than {self.limit_bytes} bytes; {self.advice} (EG-505)"
        )


class BodyReader:
    """Reader of bodies of one server. `pool` counts the bytes that all requests in progress hold, by caller.

    `decoding` decompresses bodies; None if they are so small that this is done on the event loop.
    """

    def __init__(self, settings: Bounds, pool: Pool, decoding: Decoding | None = None) -> None:
        self._settings, self.pool, self._decoding = settings, pool, decoding
        self.retry_after_s = settings.retry_after_s
        self._waiting: dict[Lease, tuple[int, asyncio.Future[None]]] = {}
        """Size of the body and its turn, by lease, of uploads that wait; the longest one first."""

    @contextmanager
    def lease(self, admitted: Admitted) -> Iterator[Lease]:
        """Yield a lease for the memory of one request; it is released at the end."""
        lease = Lease(self, admitted)
        try:
            yield lease
        finally:
            lease.become(0)

    async def read(
        self, receive: Receive, headers: Mapping[str, str], lease: Lease, most: Most | None = None
    ) -> bytearray:
        """Return the whole decompressed body, of at most `max_body_bytes`, and of `most` if that is less.

        Raises RequestError TOO_LARGE, OVERLOADED or INVALID, ClientGone, and SlowBody.
        """
        most = self.bound(most)
        length = headers.get("content-length")
        most.check_length(length)
        if lease.local and length is not None and length.isdecimal():
            await self._reserve(lease, int(length))
        inflate = Inflation(headers.get("content-encoding", ""), most)
        body = bytearray()
        try:
            async with timeout(min(self._settings.body_timeout_s, settings.BODY_PAUSE_S)) as limit:
                await self._collect(receive, inflate, body, lease, limit)
        except TimeoutError:
            limit_s, pause_s = self._settings.body_timeout_s, settings.BODY_PAUSE_S
            raise SlowBody(f"the body took longer than {limit_s:g} s, or paused for {pause_s:g} s") from None
        inflate.finish()
        return body

    def bound(self, most: Most | None) -> Most:
        """Return `most`, or `max_body_bytes` if that is less or `most` is None."""
        limit_bytes = self._settings.max_body_bytes
        return Most(limit_bytes) if most is None or most.limit_bytes > limit_bytes else most

    def is_free(self, lease: Lease, size: int) -> bool:
        """Return True if a body of this size could be reserved now, and no other one of its caller waits for that."""
        return lease.is_free(size) and not any(other.key == lease.key for other in self._waiting)

    async def _reserve(self, lease: Lease, size: int) -> None:
        """Hold the memory for a body of a caller on this device, and wait for it: first come, first served.

        Such a caller sends as fast as memory: if it were refused, it would be refused again. Meanwhile its bytes wait
        in the kernel. Raises RequestError OVERLOADED after `body_timeout_s`.
        """
        if not self.is_free(lease, size):
            turn = asyncio.get_running_loop().create_future()
            self._waiting[lease] = size, turn
            try:
                await asyncio.wait((turn,), timeout=self._settings.body_timeout_s)
            finally:
                del self._waiting[lease]
            if turn.done():
                return
        lease.reserve(size)

    def give_turns(self) -> None:
        """Reserve for those that wait. A caller whose share is used up does not keep other callers waiting."""
        refused = set[str]()
        for lease, (size, turn) in self._waiting.items():
            if lease.key not in refused and not turn.done():
                if lease.is_free(size):
                    lease.reserve(size)
                    turn.set_result(None)
                else:
                    refused.add(lease.key)

    async def _collect(
        self, receive: Receive, inflate: Inflation, body: bytearray, lease: Lease, limit: Timeout
    ) -> None:
        """Add the body's pieces. `limit` moves with each: it is the body's own, or that of a pause."""
        clock = asyncio.get_running_loop().time
        ends_s = clock() + self._settings.body_timeout_s
        received = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            chunk, more = message.get("body", b""), message.get("more_body", False)
            received += len(chunk)
            if received > inflate.most.limit_bytes:
                raise inflate.most.too_large()
            lease.take(len(chunk))
            if inflate.compressed:
                await self._inflate(chunk, inflate, body, lease)
            else:
                body += chunk
            if more:
                limit.reschedule(min(ends_s, clock() + settings.BODY_PAUSE_S))

    async def _inflate(self, chunk: bytes, inflate: Inflation, body: bytearray, lease: Lease) -> None:
        """Append what a `chunk` holds to `body`, and count it as it grows.

        64 KiB may hold 64 MiB, for which zlib takes 0.12 s: threads do it, by turns of callers.
        """
        pool, counted = self._decoding, len(body) + len(chunk)
        left: bytes | None = chunk
        while left is not None:
            steps = inflate.steps(left, body)
            left = finish(steps) if pool is None else await pool.run(lease.caller, steps, apart=True)
            if len(body) > counted:
                lease.take(len(body) - counted)
                counted = len(body)


class Lease:
    """Share of a reader's memory that one request of a caller holds: its body, its tensors, then its answer."""

    def __init__(self, reader: BodyReader, admitted: Admitted) -> None:
        self._reader, self._pool = reader, reader.pool
        self.caller, self.key, self.local = admitted.caller, admitted.share_key, admitted.local
        self._held_bytes = self._reserved_bytes = 0

    def take(self, size: int) -> None:
        """Hold `size` more bytes. Raises RequestError OVERLOADED if the caller, or all callers, hold too many."""
        reserved = min(size, self._reserved_bytes)
        if more := size - reserved:
            self._require(more)
        self._held_bytes += more
        self._reserved_bytes -= reserved

    def become(self, size: int) -> None:
        """Hold `size` bytes instead of those so far. Raises RequestError as `take` does."""
        more = size - self._held_bytes
        if more > 0:
            self._require(more)
        elif more:
            self._pool.give(self.key, local=self.local, amount=-more)
        self._held_bytes, self._reserved_bytes = size, 0
        self._reader.give_turns()

    def is_free(self, body_bytes: int) -> bool:
        """Return True if a body of this size could be reserved now."""
        return not self._pool.refusal(self.key, local=self.local, amount=self._amount(body_bytes))

    def fits(self, size: int) -> bool:
        """Return True if `take` would not refuse."""
        more = size - min(size, self._reserved_bytes)
        return not more or not self._pool.refusal(self.key, local=self.local, amount=more)

    def reserve(self, body_bytes: int) -> None:
        """Hold what a body takes later, and as much for its tensors or its answer. Raises RequestError as `take`."""
        amount = self._amount(body_bytes)
        self.take(amount)
        self._reserved_bytes += amount

    def _amount(self, body_bytes: int) -> int:
        return min(2 * body_bytes, self._pool.bounds.share)

    def _require(self, more: int) -> None:
        retry_after_s, held = self._reader.retry_after_s, self._held_bytes
        self._pool.require(self.key, local=self.local, amount=more, held=held, retry_after_s=retry_after_s)


class Inflation:
    """Decompressor of one Content-Encoding, piece by piece, which stops if the result would exceed `most`."""

    def __init__(self, encoding: str, most: Most) -> None:
        self._encoding, self._left, self.most = encoding.strip().lower() or "identity", most.limit_bytes, most
        if self._encoding not in ENCODINGS:
            raise RequestError(
                Fault.INVALID, f"Content-Encoding {encoding!r:.60} is not read here; send one of {', '.join(ENCODINGS)}"
            )
        self.compressed = self._encoding != "identity"
        self._zlib = zlib.decompressobj(_GZIP_OR_ZLIB)

    def steps(self, chunk: bytes, body: bytearray) -> Steps[bytes | None]:
        """Append what a `chunk` holds to `body`, in steps of STEP_BYTES. Raises RequestError TOO_LARGE or INVALID.

        Return what is left of it after COUNTED_BYTES, or None.
        """
        begin, more = len(body), True
        while more:
            limit = min(STEP_BYTES, self._left + 1)  # one more than allowed separates "the limit" from "above"
            part = self._part(chunk, limit)
            body += part
            chunk, more = self._zlib.unconsumed_tail, len(part) == limit
            if more and len(body) - begin >= COUNTED_BYTES:
                return chunk
            if more:
                yield
        return None

    def _part(self, chunk: bytes, limit: int) -> bytes:
        try:
            plain = self._zlib.decompress(chunk, limit)
        except zlib.error as error:
            raise self._broken(str(error)) from None
        if self._zlib.unused_data:
            raise self._broken("data follows its end")
        self._left -= len(plain)
        if self._left < 0:
            raise self.most.too_large("decompressed ")
        return plain

    def finish(self) -> None:
        """Check the end of the stream. Raises RequestError INVALID if it is cut short."""
        if self.compressed and not self._zlib.eof:
            raise self._broken("it is cut short")

    def _broken(self, why: str) -> RequestError:
        return RequestError(Fault.INVALID, f"the {self._encoding} body is broken: {why}")


def accepted_encoding(accept: str) -> str:
    """Return the encoding for an Accept-Encoding header: gzip before deflate, else "identity"."""
    weights: dict[str, bool] = {}
    for part in accept.lower().split(","):
        name, _, options = part.partition(";")
        weights[name.strip()] = options.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return next((name for name in ("gzip", "deflate") if weights.get(name)), "identity")


def compress_steps(pieces: Iterable[bytes], encoding: str, level: int) -> Steps[bytes]:
    """Return the `pieces` in the gzip or zlib format; a step compresses about COMPRESSED_BYTES."""
    squeeze = zlib.compressobj(level, wbits=16 + zlib.MAX_WBITS if encoding == "gzip" else zlib.MAX_WBITS)
    parts, size = [], 0
    for piece in pieces:
        for begin in range(0, len(piece), COMPRESSED_BYTES):
            part = memoryview(piece)[begin : begin + COMPRESSED_BYTES]
            parts.append(squeeze.compress(part))
            size += len(part)
            if size >= COMPRESSED_BYTES:
                yield
                size = 0
    return b"".join((*parts, squeeze.flush()))
