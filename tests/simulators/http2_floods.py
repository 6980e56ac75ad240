"""HTTP/2 floods of frames without requests, and the number after which a connection must end."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from tests.simulators.http2_peer import ASKED, REQUEST, data, headers

Flood = Callable[[], Iterator[bytes]]
END = frames.END_STREAM
LIMITS = Http2Limits()
STREAMS = range(1, 2**31, 2)
frame = frames.frame


def streams_of(words: Callable[[int], bytes]) -> Flood:
    """Return a flood that repeats on one stream after another."""
    return lambda: (words(number) for number in STREAMS)


def behind(first: bytes, then: bytes) -> Flood:
    """Return a flood that sends `first` once, then repeats `then`."""
    return lambda: itertools.chain([first], itertools.repeat(then))


def again(words: bytes) -> Flood:
    """Return a flood that repeats the same bytes."""
    return lambda: itertools.repeat(words)


LARGE_ENTRY = b"\x40\x01k\x7f\x80\x1e" + b"x" * 3967
FLOODS: dict[str, tuple[Flood, int]] = {
    "rapid reset": (streams_of(lambda n: headers(n) + frames.reset_frame(n, 8)), LIMITS.resets_burst),
    "made you reset by a window of 0": (
        streams_of(lambda n: headers(n) + frames.window_frame(n, 0)),
        LIMITS.resets_burst,
    ),
    "made you reset by a window over 2^31": (
        streams_of(lambda n: headers(n) + frames.window_frame(n, 2**31 - 1)),
        LIMITS.resets_burst,
    ),
    "made you reset by DATA behind the end": (
        streams_of(lambda n: headers(n, END) + data(n, b"x")),
        LIMITS.resets_burst,
    ),
    "made you reset by HEADERS behind the end": (streams_of(lambda n: headers(n, END) * 2), LIMITS.resets_burst),
    "made you reset by unended trailers": (streams_of(lambda n: headers(n) * 2), LIMITS.resets_burst),
    "malformed requests": (streams_of(lambda n: headers(n, END, encode(ASKED[1:]))), LIMITS.resets_burst),
    "header lists too large": (
        streams_of(lambda n: headers(n, END, REQUEST + (b"\xbe" * 5 if n > 1 else LARGE_ENTRY))),
        LIMITS.resets_burst,
    ),
    "streams beyond the bound": (streams_of(headers), LIMITS.max_streams + LIMITS.resets_burst),
    "resets of one stream": (behind(headers(1), frames.reset_frame(1, 8)), LIMITS.resets_burst),
    "PING": (again(frame(frames.PING, 0, 0, bytes(8))), LIMITS.max_ping_strikes + 1),
    "PING acknowledged": (again(frame(frames.PING, frames.ACK, 0, bytes(8))), LIMITS.controls_burst),
    "SETTINGS": (again(frame(frames.SETTINGS, 0, 0)), LIMITS.controls_burst),
    "SETTINGS acknowledged": (again(frame(frames.SETTINGS, frames.ACK, 0)), LIMITS.controls_burst),
    "PRIORITY": (again(frame(frames.PRIORITY, 0, 1, bytes(5))), LIMITS.controls_burst),
    "GOAWAY": (again(frame(frames.GOAWAY, 0, 0, bytes(8))), LIMITS.controls_burst),
    "unknown frames": (again(frame(99, 0, 0, b"?")), LIMITS.controls_burst),
    "empty DATA": (behind(headers(1), data(1, b"")), LIMITS.controls_burst),
    "DATA of padding": (behind(headers(1), data(1, b"", padding=9)), LIMITS.controls_burst),
    "empty DATA on closed streams": (
        behind(headers(1) + frames.reset_frame(1, 8), data(1, b"")),
        LIMITS.controls_burst,
    ),
    "WINDOW_UPDATE": (again(frames.window_frame(0, 1)), LIMITS.controls_burst),
    "WINDOW_UPDATE of a stream": (behind(headers(1), frames.window_frame(1, 1)), LIMITS.controls_burst),
    "CONTINUATION": (behind(frame(1, 0, 1, REQUEST), frame(9, 0, 1)), LIMITS.max_continuations),
}
