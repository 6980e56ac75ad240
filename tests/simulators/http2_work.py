"""Classes of work that a peer's bytes cause, each as repeated bytes, and their cost."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hpack

from gateway.common.domain.access import Security
from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.reader import NOTHING
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.connection import GrpcConnection
from gateway.serving.frontends.grpc_v2.transport.sockets import READ_BYTES
from gateway.serving.frontends.peer import Peer
from tests.simulators.constants import settings_with
from tests.simulators.grpc_gateway import Gateway
from tests.simulators.http2_floods import LARGE_ENTRY
from tests.simulators.http2_peer import ASKED, REQUEST, WELCOME, data, headers
from tests.simulators.inference import SimulatedInference

NO_GUARD = 2**31 - 1
LIMITS = settings_with(
    Http2Limits(),
    resets_burst=NO_GUARD, controls_burst=NO_GUARD, max_unread_bytes=NO_GUARD, max_ping_strikes=NO_GUARD,
    unanswered_work_ms=NO_GUARD,
)  # fmt: skip
"""No limit ends the connection while its work is measured."""
SIZE = 512 * 1024
END = frames.END_STREAM
UNKNOWN = encode((*((name, b"/no/Method" if name == b":path" else value) for name, value in ASKED),))
MANY = hpack.Encoder().encode([(b"x-%d" % number, b"the value of this one") for number in range(200)], huffman=True)


@dataclass(frozen=True, slots=True)
class Work:
    """One class of work. `first` is sent once; `words` returns the repeated bytes for a stream number.

    A class of cheap bytes is measured with `times` more of them.
    """

    words: Callable[[int], bytes]
    first: bytes = b""
    times: int = 1


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes, processor time and charge, and the largest charge of a slice."""

    size: int
    cost_ns: int
    charge_ns: int
    largest_ns: int


def _continued(number: int) -> bytes:
    empty = frames.frame(frames.CONTINUATION, 0, number)
    last = frames.frame(frames.CONTINUATION, frames.END_HEADERS, number)
    return frames.frame(frames.HEADERS, END, number, REQUEST) + empty * 7 + last


def _same(words: bytes) -> Callable[[int], bytes]:
    return lambda _: words


def _blocks(block: bytes) -> Callable[[int], bytes]:
    return lambda number: headers(number, END, block)


MESSAGE = headers(1) + data(1, b"\0" + (60 << 20).to_bytes(4, "big"))
_encoder = hpack.Encoder()
TABLED = _encoder.encode([(name, b"/no/Method" if name == b":path" else value) for name, value in ASKED])
SHORT = _encoder.encode([(name, b"/no/Method" if name == b":path" else value) for name, value in ASKED])
"""Header block that is literal at its first use, and index bytes later."""
STREAMS = b"".join(headers(number) for number in range(1, 201, 2))
CLASSES: dict[str, Work] = {
    "blocks of index bytes": Work(_blocks(REQUEST + b"\x90" * 240)),
    "large lists of index bytes": Work(_blocks(REQUEST + b"\xbe" * 14), headers(1, END, REQUEST + LARGE_ENTRY)),
    "refused lists of index bytes": Work(_blocks(REQUEST + b"\x90" * 1000)),
    "table churn by insertions": Work(_blocks(REQUEST + b"\x40\x01a\x01b" * 300)),
    "table churn by size updates": Work(_blocks(b"\x20\x3f\xe1\x1f" + REQUEST)),
    "literals": Work(_blocks(REQUEST + b"\x00\x01a\x01b" * 300)),
    "Huffman literals": Work(_blocks(REQUEST + MANY)),
    "empty CONTINUATION": Work(_continued),
    "DATA of 1 byte": Work(_same(data(1, b"x")), MESSAGE),
    "DATA of padding": Work(_same(data(1, b"", padding=9)), MESSAGE),
    "DATA of 16 KiB": Work(_same(data(1, bytes(16_384))), MESSAGE, times=50),
    "DATA on a closed stream": Work(_same(data(1, b"x")), headers(1) + frames.reset_frame(1, 8)),
    "PING": Work(_same(frames.frame(frames.PING, 0, 0, bytes(8)))),
    "PRIORITY": Work(_same(frames.frame(frames.PRIORITY, 0, 1, bytes(5)))),
    "unknown frames": Work(_same(frames.frame(99, 0, 0, b"?"))),
    "SETTINGS": Work(_same(frames.settings_frame({}))),
    "SETTINGS of many windows": Work(
        lambda number: frames.settings_frame({frames.INITIAL_WINDOW_SIZE: number}), STREAMS
    ),
    "WINDOW_UPDATE": Work(_same(frames.window_frame(0, 1))),
    "streams opened and reset": Work(lambda number: headers(number) + frames.reset_frame(number, 8)),
    "calls of unknown methods": Work(_blocks(UNKNOWN)),
    "calls by index bytes": Work(_blocks(SHORT), headers(1, END, TABLED)),
    "resets by index bytes": Work(lambda n: headers(n, 0, SHORT) + frames.reset_frame(n, 8), headers(1, END, TABLED)),
}


class OwnGateway(Gateway):
    """The gateway's own server without listeners."""

    server = "own"


class Sink(asyncio.Transport):
    """Transport that discards everything."""

    def write(self, data: Any) -> None:
        pass

    def writelines(self, list_of_data: Any) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        pass


async def measured(work: Work, size: int = SIZE) -> Measured:
    """Return cost and charge of `size` bytes of a class on a separate link."""
    server = OwnGateway(SimulatedInference(), GrpcSettings(http2=LIMITS), Security()).frontend
    link = GrpcConnection(server, Peer(address="127.0.0.1"))
    link.connection_made(Sink())
    _said(link, server.buffer, WELCOME + work.first)
    words = _words(work, size)
    slices, began_ns = list[int](), time.thread_time_ns()
    for place in range(0, len(words), READ_BYTES):
        slices += _said(link, server.buffer, words[place : place + READ_BYTES])
    cost_ns = time.thread_time_ns() - began_ns
    assert not link._h2.failed, link._h2.failed
    link.connection_lost(None)
    return Measured(len(words), cost_ns, sum(slices), max(slices))


def _words(work: Work, size: int) -> bytes:
    parts, total = list[bytes](), 0
    for number in itertools.count(1001, 2):
        if total >= size:
            break
        parts.append(work.words(number))
        total += len(parts[-1])
    return b"".join(parts)


def _said(link: GrpcConnection, buffer: memoryview, words: bytes) -> list[int]:
    """Let the link read `words`; return what it charged for each slice."""
    buffer[: len(words)] = words
    slices = [link.receive(buffer[: len(words)])]
    while link.behind:
        slices.append(link.receive(NOTHING))
    return slices
