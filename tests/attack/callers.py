"""Cheap clients: they send frames of prepared unary requests and read replies as frames."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from tests.simulators.http2_peer import ASKED, WELCOME

WIDE_WINDOW = frames.window_frame(0, 2**31 - 1 - 65_535)
"""The largest connection window: replies of one run stay below it."""


@dataclass(slots=True)
class Seen:
    """Calls of one caller: durations of the answered ones in seconds, and the number of refused ones."""

    took_s: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def answered(self) -> int:
        """The number of answered calls."""
        return len(self.took_s)


class Caller(asyncio.Protocol):
    """One connection that repeats one prepared message. A reply without DATA is a refusal."""

    def __init__(self, message: bytes, token: str) -> None:
        self.seen = Seen()
        self.free = asyncio.Event()
        self._failure = ""
        authorization = ((b"authorization", f"Bearer {token}".encode()),) if token else ()
        self._headers = encode((*ASKED, *authorization))
        self._body = b"\0" + len(message).to_bytes(4, "big") + message
        self._sent_s: dict[int, float] = {}
        self._with_data: set[int] = set()
        self._stream, self._left = 1, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(WELCOME + WIDE_WINDOW)

    def ask(self) -> None:
        """Send one request. Raises ConnectionError if the connection has failed."""
        if self._failure:
            raise ConnectionError(self._failure)
        stream, self._stream = self._stream, self._stream + 2
        self._sent_s[stream] = time.monotonic()
        self.free.clear()
        headers = frames.frame(frames.HEADERS, frames.END_HEADERS, stream, self._headers)
        self._transport.write(headers + frames.frame(frames.DATA, frames.END_STREAM, stream, self._body))

    def data_received(self, data: bytes) -> None:
        """Count the replies that end."""
        data, at = self._left + data, 0
        while len(data) - at >= frames.HEADER_BYTES:
            high, low, kind, flags, stream = frames.HEADER.unpack_from(data, at)
            end = at + frames.HEADER_BYTES + (high << 16 | low)
            if end > len(data):
                break
            self._frame(kind, flags, stream, data[at + frames.HEADER_BYTES : end])
            at = end
        self._left = data[at:]

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail if a reply is missing."""
        if self._sent_s:
            self._fail(f"the connection ended before a reply: {exc}")

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == frames.DATA:
            self._with_data.add(stream)
        elif kind == frames.HEADERS and flags & frames.END_STREAM:
            self._ended(stream)
        elif kind in (frames.SETTINGS, frames.PING) and not flags & frames.ACK:
            self._transport.write(frames.frame(kind, frames.ACK, 0, payload if kind == frames.PING else b""))
        elif kind in (frames.RST_STREAM, frames.GOAWAY):
            self._fail(f"frame {kind} on stream {stream}: {payload!r}")

    def _fail(self, failure: str) -> None:
        self._failure = failure
        self._sent_s.clear()
        self.free.set()

    def _ended(self, stream: int) -> None:
        if self._failure:
            return
        took_s = time.monotonic() - self._sent_s.pop(stream)
        if stream in self._with_data:
            self._with_data.discard(stream)
            self.seen.took_s.append(took_s)
        else:
            self.seen.refused += 1
        if not self._sent_s:
            self.free.set()


async def connect(
    address: str, message: bytes, tokens: Sequence[str], sources: Sequence[str] | None = None
) -> list[Caller]:
    """Connect one caller for each token ("": none), from the addresses `sources` if given."""
    callers = [Caller(message, token) for token in tokens]
    for index, caller in enumerate(callers):
        await _connect(caller, address, None if sources is None else (sources[index], 0))
    return callers


async def _connect(caller: Caller, address: str, source: tuple[str, int] | None) -> None:
    host, port = address.rsplit(":", 1)
    await asyncio.get_running_loop().create_connection(lambda: caller, host, int(port), local_addr=source)
