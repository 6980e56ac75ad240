"""Every rule of RFC 9113 that a server has to insist on, as bytes that break it and what that costs, by section.

    3.4    preface, then SETTINGS                       6.4   RST_STREAM: not on idle streams or 0; four bytes
    4.2    frame sizes                                  6.5   SETTINGS: stream 0; sixes; ACK empty; values' ranges
    4.3    header blocks are not interrupted; HPACK     6.6   PUSH_PROMISE never from a client
    5.1    states: idle, half-closed (remote), closed   6.7   PING: stream 0; eight bytes
    5.1.1  stream identifiers: odd, growing             6.8   GOAWAY: stream 0; eight bytes at least
    5.1.2  concurrency                                  6.9   WINDOW_UPDATE: four bytes; no 0; no window over 2^31-1
    5.5    unknown frames are ignored                   6.10  CONTINUATION: same stream, behind HEADERS
    6.1    DATA: not on 0; padding; windows             8.1   trailers end their stream
    6.2    HEADERS: not on 0; padding                   8.2   fields; 8.3 pseudo-headers (test_requests.py has them all)
    6.3    PRIORITY: not on 0; five bytes               RFC 7541: indices, sizes, strings (test_hpack.py has them all)

Stricter than it must be: a PRIORITY of wrong size ends the connection (5.4.1 allows that for every stream error), and
so does a stream that depends on itself (RFC 7540, 5.3.1; RFC 9113 has no priorities). As it says: frames on a stream
that the server reset are ignored (5.1), its content-length included, up to the client's END_STREAM or RST_STREAM.
Laxer: of a setting that one frame repeats only the last value is checked (6.5.3), a skipped stream counts as closed
(5.1.1), Host is not compared with :authority (8.3.1), and CONNECT is refused as malformed (8.5).
"""

from __future__ import annotations

import pytest

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.errors import Code
from gateway.serving.frontends.grpc_v2.http2.events import StreamDropped, StreamOpened
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.requests import read_request
from tests.simulators.constants import settings_with
from tests.simulators.http2_peer import (
    ASKED,
    REQUEST,
    answer,
    data,
    goaway,
    headers,
    opened,
    reset_code,
    said,
    tell,
    welcomed,
)

END = frames.END_STREAM
LIMITS = settings_with(
    Http2Limits(), max_streams=4, max_frame_bytes=16_384, connection_window_bytes=100_000, stream_window_bytes=65_535
)
P, S, F, C, W, CALM = (
    Code.PROTOCOL_ERROR,
    Code.STREAM_CLOSED,
    Code.FRAME_SIZE_ERROR,
    Code.COMPRESSION_ERROR,
    Code.FLOW_CONTROL_ERROR,
    Code.ENHANCE_YOUR_CALM,
)
OPENED, DONE = headers(1), headers(1, END)


def ANNOUNCED(size: int) -> bytes:
    """Return a request whose content-length is `size`."""
    return headers(1, 0, encode((*ASKED, (b"content-length", b"%d" % size))))


def PRIORITY(on: int) -> bytes:
    """Return the priority of a stream that depends on stream `on`."""
    return frames.UINT32.pack(on) + b"\xff"


frame = frames.frame
PUSHED = frame(frames.PUSH_PROMISE, frames.END_HEADERS, 1, frames.UINT32.pack(2) + REQUEST)
UPDATED = frames.window_frame


def setting(identifier: int, value: int) -> bytes:
    return frames.settings_frame({identifier: value})


CONNECTION_ERRORS: list[tuple[str, bytes, Code]] = [
    ("4.2 DATA larger than we offered", OPENED + data(1, bytes(16_385)), F),
    ("4.2 HEADERS larger than we offered", frame(frames.HEADERS, 4, 1, bytes(16_385)), F),
    ("4.2 CONTINUATION larger than we offered", frame(1, 0, 1, REQUEST) + frame(9, 4, 1, bytes(16_385)), F),
    ("4.2 SETTINGS larger than we offered", frame(frames.SETTINGS, 0, 0, bytes(16_386)), F),
    ("4.2 an unknown frame larger than we offered", frame(99, 0, 0, bytes(16_385)), F),
    ("4.3 a block that HPACK cannot read", headers(1, 0, b"\x80"), C),
    ("4.3 a block interrupted by another frame", frame(1, 0, 1, REQUEST) + frame(frames.PING, 0, 0, bytes(8)), P),
    ("4.3 a block interrupted by DATA", frame(frames.HEADERS, 0, 1, REQUEST) + data(1, b"x"), P),
    ("4.3 a block interrupted by HEADERS", frame(frames.HEADERS, 0, 1, REQUEST) + headers(3), P),
    ("4.3 a block interrupted by an unknown frame", frame(frames.HEADERS, 0, 1, REQUEST) + frame(99, 0, 0), P),
    ("5.1 idle: DATA", data(1, b"x"), P),
    ("5.1 idle: RST_STREAM", frames.reset_frame(1, 8), P),
    ("5.1 idle: WINDOW_UPDATE", UPDATED(1, 1), P),
    ("6.9 WINDOW_UPDATE of an idle stream by 0", UPDATED(1, 0), P),
    ("5.1 idle: CONTINUATION", frame(frames.CONTINUATION, 4, 1, REQUEST), P),
    ("5.1 closed by its peer's RST_STREAM: HEADERS", OPENED + frames.reset_frame(1, 8) + headers(1), S),
    ("5.1.1 an even stream", headers(2), P),
    ("5.1.1 a stream below one that was opened", headers(5) + headers(3), S),
    ("5.1.1 DATA on an even stream", OPENED + data(2, b""), P),
    ("6.1 DATA on stream 0", data(0, b"x"), P),
    ("6.1 DATA padded by its length", OPENED + frame(frames.DATA, frames.PADDED, 1, b"\x05abcd"), P),
    ("6.1 DATA padded without a length", OPENED + frame(frames.DATA, frames.PADDED, 1), F),
    ("6.2 HEADERS on stream 0", headers(0), P),
    ("6.2 HEADERS padded by more than its length", frame(frames.HEADERS, 4 | frames.PADDED, 1, b"\x7f" + REQUEST), P),
    ("6.2 HEADERS padded without a length", frame(frames.HEADERS, 4 | frames.PADDED, 1), F),
    ("6.2 HEADERS without the priority it announces", frame(frames.HEADERS, 4 | frames.PRIORITISED, 1, b"1234"), F),
    ("6.3 PRIORITY on stream 0", frame(frames.PRIORITY, 0, 0, bytes(5)), P),
    ("6.3 PRIORITY of four bytes", frame(frames.PRIORITY, 0, 1, bytes(4)), F),
    ("6.3 PRIORITY of six bytes", OPENED + frame(frames.PRIORITY, 0, 1, bytes(6)), F),
    ("7540 5.3.1 PRIORITY that depends on itself", frame(frames.PRIORITY, 0, 1, PRIORITY(1)), P),
    ("7540 5.3.1 an open stream's PRIORITY that does", OPENED + frame(frames.PRIORITY, 0, 1, PRIORITY(1)), P),
    ("7540 5.3.1 exclusively", frame(frames.PRIORITY, 0, 1, PRIORITY(1 << 31 | 1)), P),
    ("7540 5.3.1 HEADERS that depend on themselves", frame(frames.HEADERS, 0x24, 1, PRIORITY(1) + REQUEST), P),
    ("7540 5.3.1 padded ones", frame(frames.HEADERS, 0x2C, 1, b"\x02" + PRIORITY(1) + REQUEST + b"--"), P),
    ("6.4 RST_STREAM on stream 0", frames.reset_frame(0, 8), P),
    ("6.4 RST_STREAM on a stream of ours", frames.reset_frame(2, 8), P),
    ("6.4 RST_STREAM of three bytes", OPENED + frame(frames.RST_STREAM, 0, 1, bytes(3)), F),
    ("6.4 RST_STREAM of five bytes", OPENED + frame(frames.RST_STREAM, 0, 1, bytes(5)), F),
    ("6.5 SETTINGS on a stream", frame(frames.SETTINGS, 0, 1, bytes(6)), P),
    ("6.5 SETTINGS of five bytes", frame(frames.SETTINGS, 0, 0, bytes(5)), F),
    ("6.5 SETTINGS of seven bytes", frame(frames.SETTINGS, 0, 0, bytes(7)), F),
    ("6.5 SETTINGS with ACK and a payload", frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), F),
    ("6.5.2 ENABLE_PUSH of 2", setting(frames.ENABLE_PUSH, 2), P),
    ("6.5.2 INITIAL_WINDOW_SIZE of 2^31", setting(frames.INITIAL_WINDOW_SIZE, 2**31), W),
    ("6.5.2 MAX_FRAME_SIZE of 16383", setting(frames.MAX_FRAME_SIZE, 16_383), P),
    ("6.5.2 MAX_FRAME_SIZE of 2^24", setting(frames.MAX_FRAME_SIZE, 2**24), P),
    ("6.6 PUSH_PROMISE", OPENED + PUSHED, P),
    ("6.7 PING on a stream", OPENED + frame(frames.PING, 0, 1, bytes(8)), P),
    ("6.7 PING of seven bytes", frame(frames.PING, 0, 0, bytes(7)), F),
    ("6.7 PING of nine bytes", frame(frames.PING, 0, 0, bytes(9)), F),
    ("6.8 GOAWAY on a stream", frame(frames.GOAWAY, 0, 1, bytes(8)), P),
    ("6.8 GOAWAY of seven bytes", frame(frames.GOAWAY, 0, 0, bytes(7)), F),
    ("6.9 WINDOW_UPDATE of three bytes", frame(frames.WINDOW_UPDATE, 0, 0, bytes(3)), F),
    ("6.9 WINDOW_UPDATE of five bytes", OPENED + frame(frames.WINDOW_UPDATE, 0, 1, bytes(5)), F),
    ("6.9 WINDOW_UPDATE of the connection by 0", UPDATED(0, 0), P),
    ("6.9.1 the connection's window over 2^31-1", UPDATED(0, 2**31 - 1), W),
    ("6.9.2 a stream's window over 2^31-1 by SETTINGS", OPENED + UPDATED(1, 2**30) + setting(4, 2**31 - 1), W),
    ("6.10 CONTINUATION behind a whole block", OPENED + frame(frames.CONTINUATION, 4, 1, REQUEST), P),
    ("6.10 CONTINUATION of another stream", frame(frames.HEADERS, 0, 1) + frame(frames.CONTINUATION, 4, 3, REQUEST), P),
    ("6.10 CONTINUATION on stream 0", frame(frames.CONTINUATION, 4, 0, REQUEST), P),
    ("6.10 CONTINUATION behind DATA", OPENED + data(1, b"x") + frame(frames.CONTINUATION, 4, 1, REQUEST), P),
    ("7541 2.3.3 an index that is not there", headers(1, 0, b"\xff\x00"), C),
    ("7541 4.2 a table larger than offered", headers(1, 0, b"\x3f\xe2\x1f" + REQUEST), C),
    ("7541 5.2 a string that is too long", headers(1, 0, b"\x00\x7f"), C),
]  # fmt: skip

STREAM_ERRORS: list[tuple[str, bytes, Code]] = [
    ("5.1 half-closed: DATA", DONE + data(1, b"x"), S),
    ("5.1 closed: DATA behind RST_STREAM", OPENED + frames.reset_frame(1, 8) + data(1, b"late"), S),
    ("5.1.1 closed: DATA on a stream that was passed over", headers(3, END, encode(ASKED[1:])) + data(1, b"x"), S),
    ("5.1 half-closed: HEADERS", DONE + headers(1, END, encode(((b"x", b"y"),))), S),
    ("6.9 WINDOW_UPDATE of a stream by 0", OPENED + UPDATED(1, 0), P),
    ("6.9 WINDOW_UPDATE of a closed stream by 0", OPENED + frames.reset_frame(1, 8) + UPDATED(1, 0), P),
    ("6.9.1 a stream's window over 2^31-1", OPENED + UPDATED(1, 2**31 - 1), W),
    ("6.9.1 more DATA than the stream's window", OPENED + data(1, bytes(16_384)) * 4, W),
    ("8.1 a second block that does not end its stream", OPENED + headers(1, 0, encode(((b"x", b"y"),))), P),
    ("8.1 a pseudo-header among trailers", OPENED + headers(1, END), P),
    ("8.1.1 content-length of less than the body", ANNOUNCED(1) + data(1, b"four", END), P),
    ("8.1.1 content-length of more than the body", ANNOUNCED(9) + data(1, b"four", END), P),
    ("8.1.1 content-length of less than several frames", ANNOUNCED(5) + data(1, b"four") * 2, P),
    ("8.1.1 content-length of more, and trailers", ANNOUNCED(9) + headers(1, END, encode(((b"x", b"y"),))), P),
    ("8.1.1 content-length and no body", headers(1, END, encode((*ASKED, (b"content-length", b"1")))), P),
    ("8.1.1 content-length that is no number", headers(1, 0, encode((*ASKED, (b"content-length", b"+4")))), P),
    ("8.1.1 two content-length", headers(1, 0, encode((*ASKED, *[(b"content-length", b"4")] * 2))), P),
    ("8.2.1 a capital in a name", headers(1, 0, encode((*ASKED, (b"X-Y", b"z")))), P),
    ("8.2.1 a capital among trailers", OPENED + headers(1, END, encode(((b"X", b"y"),))), P),
    ("8.2.2 connection", headers(1, 0, encode((*ASKED, (b"connection", b"close")))), P),
    ("8.2.2 te other than trailers", headers(1, 0, encode((*ASKED, (b"te", b"gzip")))), P),
    ("8.3 an unknown pseudo-header", headers(1, 0, encode((*ASKED[:3], (b":test", b"1")))), P),
    ("8.3 a response's pseudo-header", headers(1, 0, encode((*ASKED[:3], (b":status", b"200")))), P),
    ("8.3 a pseudo-header behind a field", headers(1, 0, encode((*ASKED[:2], (b"x", b"y"), ASKED[2]))), P),
    ("8.3.1 no :method", headers(1, 0, encode(ASKED[1:])), P),
    ("8.3.1 no :scheme", headers(1, 0, encode((ASKED[0], *ASKED[2:]))), P),
    ("8.3.1 no :path", headers(1, 0, encode((*ASKED[:2], *ASKED[3:]))), P),
    ("8.3.1 an empty :path", headers(1, 0, encode((*ASKED[:2], (b":path", b"")))), P),
    ("8.3.1 two :method", headers(1, 0, encode((ASKED[0], *ASKED))), P),
    ("8.3.1 two :scheme", headers(1, 0, encode((ASKED[1], *ASKED))), P),
    ("8.3.1 two :path", headers(1, 0, encode((ASKED[2], *ASKED))), P),
]

FINE: list[tuple[str, bytes]] = [
    ("4.1 reserved bit and unknown flags", frame(frames.PING, 0xFE, 2**31, bytes(8))),
    ("5.1 closed: PRIORITY", OPENED + frames.reset_frame(1, 8) + frame(frames.PRIORITY, 0, 1, bytes(5))),
    ("5.1 closed: WINDOW_UPDATE", OPENED + frames.reset_frame(1, 8) + UPDATED(1, 5)),
    ("5.1 closed: RST_STREAM", OPENED + frames.reset_frame(1, 8) * 2),
    ("5.1 idle: PRIORITY", frame(frames.PRIORITY, 0, 77, bytes(5))),
    ("5.1 half-closed: PRIORITY, WINDOW_UPDATE", DONE + frame(frames.PRIORITY, 0, 1, bytes(5)) + UPDATED(1, 5)),
    ("5.5 an unknown frame", frame(99, 0xFF, 1, b"anything")),
    ("6.1 DATA of nothing but padding", OPENED + data(1, b"", padding=9)),
    ("6.2 HEADERS with padding and priority", frame(1, 0x2C, 1, b"\x0212345" + REQUEST + b"--")),
    ("6.2 HEADERS that depend on another stream", frame(1, 0x24, 1, PRIORITY(3) + REQUEST)),
    ("6.3 PRIORITY that depends on another stream", frame(frames.PRIORITY, 0, 3, PRIORITY(1))),
    ("6.5.2 an unknown setting", setting(0x99, 5)),
    ("6.5.2 settings at their bounds", setting(4, 0) + setting(4, 2**31 - 1) + setting(5, 2**24 - 1) + setting(2, 0)),
    ("6.5.3 ACK", frame(frames.SETTINGS, frames.ACK, 0)),
    ("6.7 PING with ACK", frame(frames.PING, frames.ACK, 0, bytes(8))),
    ("6.8 GOAWAY with words, and a stream behind it", frame(frames.GOAWAY, 0, 0, bytes(8) + b"bye") + OPENED),
    ("6.10 a block in pieces", frame(1, 0, 1, REQUEST[:5]) + frame(9, 0, 1) + frame(9, 4, 1, REQUEST[5:])),
    ("8.1.1 content-length of a body in frames", ANNOUNCED(8) + data(1, b"four") + data(1, b"four", END)),
    ("8.1.1 content-length of a padded body", ANNOUNCED(4) + data(1, b"four", END, padding=5)),
    ("8.1.1 content-length of no body", headers(1, END, encode((*ASKED, (b"content-length", b"0"))))),
    ("8.1 trailers", OPENED + data(1, b"x") + headers(1, END, encode(((b"x", b"y"),)))),
]


def names(cases: list[tuple[str, bytes, Code]] | list[tuple[str, bytes]]) -> list[str]:
    return [case[0] for case in cases]


def hear(words: bytes, chunk: int) -> tuple[Http2Connection, list[object]]:
    connection, events = welcomed(LIMITS), []
    for place in range(0, len(words), chunk):
        events += tell(connection, words[place : place + chunk])
    return connection, events


@pytest.mark.parametrize("chunk", [1, 1 << 20], ids=["bytewise", "whole"])
@pytest.mark.parametrize(("_name", "words", "code"), CONNECTION_ERRORS, ids=names(CONNECTION_ERRORS))
def test_the_connection_ends(_name: str, words: bytes, code: Code, chunk: int) -> None:
    connection, _ = hear(words, chunk)
    assert connection.failed is not None
    assert connection.failed.code is code
    last = goaway(said(connection))
    assert last is not None
    assert last[1] is code
    assert tell(connection, headers(99)) == []
    assert not connection.take()


@pytest.mark.parametrize("chunk", [1, 1 << 20], ids=["bytewise", "whole"])
@pytest.mark.parametrize(("_name", "words", "code"), STREAM_ERRORS, ids=names(STREAM_ERRORS))
def test_the_stream_ends_and_the_connection_goes_on(_name: str, words: bytes, code: Code, chunk: int) -> None:
    connection, events = hear(words, chunk)
    assert connection.failed is None
    assert reset_code(said(connection), 1) is code
    dropped = [event for event in events if isinstance(event, StreamDropped)]
    assert len(dropped) == sum(isinstance(event, StreamOpened) for event in events) <= 1
    assert not connection.streams
    answer(connection, opened(connection, 5))
    assert connection.failed is None


@pytest.mark.parametrize("chunk", [1, 1 << 20], ids=["bytewise", "whole"])
@pytest.mark.parametrize(("_name", "words"), FINE, ids=names(FINE))
def test_what_must_be_taken(_name: str, words: bytes, chunk: int) -> None:
    connection, _ = hear(words, chunk)
    assert connection.failed is None
    assert reset_code(said(connection), 1) is None


def test_more_data_than_the_connections_window() -> None:
    connection = welcomed(settings_with(Http2Limits(), connection_window_bytes=65_536, stream_window_bytes=1 << 20))
    tell(connection, headers(1))
    tell(connection, frames.HEADER.pack(1, 1, frames.DATA, 0, 1))  # 65,537 bytes are announced
    assert connection.failed is not None
    assert connection.failed.code is W


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frames.PREFACE + frame(frames.PING, 0, 0, bytes(8)),
        frames.PREFACE + headers(1),
        frames.PREFACE + frame(99, 0, 0),
        frames.PREFACE + UPDATED(0, 1),
        frames.PREFACE + frame(frames.SETTINGS, frames.ACK, 0) + headers(1),
    ],
    ids=["HTTP/1.1", "PING", "HEADERS", "unknown", "WINDOW_UPDATE", "ACK"],
)
def test_the_preface_is_followed_by_settings(words: bytes) -> None:
    connection = Http2Connection(LIMITS, read_request)
    tell(connection, words)
    assert connection.failed is not None
    assert connection.failed.code is P
