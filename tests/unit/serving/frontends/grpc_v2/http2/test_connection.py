"""The connection as its owner sees it: greeting, events, late words, the end. test_rules.py has what it refuses."""

from __future__ import annotations

import pytest

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.errors import Code
from gateway.serving.frontends.grpc_v2.http2.events import (
    DataReceived,
    PingAcknowledged,
    RequestReceived,
    StreamDropped,
    StreamOpened,
)
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.requests import read_request
from gateway.serving.frontends.grpc_v2.http2.streams import KEPT_CLOSED, ClosedStreams
from tests.simulators.constants import settings_with
from tests.simulators.http2_peer import (
    ASKED,
    HEAD,
    REQUEST,
    SECOND_NS,
    TRAILERS,
    WELCOME,
    answer,
    body_of,
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
frame = frames.frame


def test_what_we_greet_with_is_what_we_insist_on() -> None:
    first, window = said(Http2Connection(LIMITS, read_request))
    assert dict(frames.SETTING.iter_unpack(first.payload)) == {3: 4, 4: 65_535, 5: 16_384, 6: 16 * 1024}
    assert (window.kind, window.stream, frames.UINT32.unpack(window.payload)) == (8, 0, (100_000 - 65_535,))


def test_settings_and_pings_are_answered() -> None:
    connection = Http2Connection(LIMITS, read_request)
    connection.take()
    tell(connection, WELCOME + frame(frames.PING, 0, 0, b"12345678"))
    assert said(connection) == [(frames.SETTINGS, frames.ACK, 0, b""), (frames.PING, frames.ACK, 0, b"12345678")]


def test_streams_beyond_the_bound_are_refused_and_those_open_go_on() -> None:
    connection = welcomed(LIMITS)
    streams = [opened(connection, number) for number in (1, 3, 5, 7)]
    assert tell(connection, headers(9) + data(9, b"its body", END)) == []
    assert reset_code(said(connection), 9) is Code.REFUSED_STREAM
    answer(connection, streams[0])
    opened(connection, 11)


def test_header_lists_over_the_bound_cost_their_stream_and_the_table_goes_on() -> None:
    connection = welcomed(LIMITS)
    large = b"\x40\x01k\x01v" + encode((*ASKED, (b"x", bytes(10_000)), (b"y", bytes(6000))))
    parts = frame(1, 0, 1, large[:10_000]) + frame(9, 4, 1, large[10_000:])
    assert tell(connection, parts) == []
    assert reset_code(said(connection), 1) is Code.ENHANCE_YOUR_CALM
    stream = opened(connection, 3, 0, REQUEST + b"\xbe")
    assert stream.headers[b"k"] == b"v"


# ---- section 5.1: what a peer says on a stream before it knows that we closed it ------------------------------------
LATE = data(1, b"late") + headers(1, END, encode(((b"x", b"y"),)))


@pytest.mark.parametrize("how", ["reset", "answered", "refused", "malformed"])
def test_late_words_on_a_stream_that_we_closed_are_passed_over(how: str) -> None:
    connection = welcomed(settings_with(Http2Limits(), max_streams=1))
    if how == "reset":
        connection.reset(opened(connection), Code.CANCEL)
    elif how == "answered":
        answer(connection, opened(connection))
        assert reset_code(said(connection), 1) is Code.NO_ERROR
    elif how == "malformed":
        tell(connection, headers(1, 0, encode(ASKED[:2])))
    else:
        opened(connection)
        tell(connection, headers(3))
    late = LATE.replace(b"\0\0\0\x01", b"\0\0\0\x03") if how == "refused" else LATE
    assert tell(connection, late) == []
    assert connection.failed is None


@pytest.mark.parametrize(
    "end", [data(1, b"late", END), headers(1, END, encode(((b"x", b"y"),))), frames.reset_frame(1, 8)]
)
def test_nothing_may_follow_the_peers_own_end_of_a_stream_that_we_closed(end: bytes) -> None:
    connection = welcomed()
    answer(connection, opened(connection))
    said(connection)
    assert tell(connection, LATE[: len(data(1, b"late"))] + end) == []
    assert not said(connection)
    tell(connection, data(1, b"more"))
    assert reset_code(said(connection), 1) is Code.STREAM_CLOSED
    tell(connection, data(1, b"more", END))
    assert not said(connection)
    tell(connection, headers(1))
    assert connection.failed is not None
    assert connection.failed.code is Code.STREAM_CLOSED


def test_the_streams_that_we_closed_are_forgotten_in_turn() -> None:
    closed = ClosedStreams()
    for number in (*range(KEPT_CLOSED), 0, KEPT_CLOSED):
        closed.add(number)
    assert len(closed) == KEPT_CLOSED
    assert [closed.ignores(number, ended=False) for number in (0, 1, KEPT_CLOSED)] == [False, True, True]


def test_late_words_keep_the_table_in_step() -> None:
    connection = welcomed()
    connection.reset(opened(connection), Code.CANCEL)
    tell(connection, headers(1, END, b"\x40\x01k\x01v"))
    assert opened(connection, 3, 0, REQUEST + b"\xbe").headers[b"k"] == b"v"


def test_late_words_are_not_free() -> None:
    connection = welcomed(settings_with(Http2Limits(), controls_burst=50))
    connection.reset(opened(connection), Code.CANCEL)
    for _ in range(60):
        tell(connection, headers(1, 0, b""))
    assert connection.failed is not None
    assert connection.failed.code is Code.ENHANCE_YOUR_CALM


# ---- section 6.8: the end -------------------------------------------------------------------------------------------
def test_a_drain_takes_what_was_on_its_way_and_nothing_after() -> None:
    connection = welcomed()
    first = opened(connection, 1)
    connection.announce_drain()
    second = opened(connection, 3)
    connection.drain()
    assert tell(connection, headers(5) + data(5, b"x") + LATE.replace(b"\0\0\0\x01", b"\0\0\0\x05")) == []
    answer(connection, first)
    assert tell(connection, data(3, b"body", END))
    answer(connection, second)
    words = said(connection)
    lasts = [frames.TWO_UINT32.unpack_from(each.payload) for each in words if each.kind == frames.GOAWAY]
    assert lasts == [(2**31 - 1, 0), (3, 0)]
    assert not connection.streams
    assert connection.failed is None


def test_a_goaway_after_the_drain_names_no_later_stream() -> None:
    connection = welcomed()
    opened(connection, 1)
    connection.drain()
    tell(connection, headers(5) + headers(0))
    assert goaway(said(connection)) == (1, Code.PROTOCOL_ERROR)


# ---- events ---------------------------------------------------------------------------------------------------------
def test_a_request_in_one_read() -> None:
    connection = welcomed()
    (event,) = tell(connection, headers(1) + data(1, b"body", END))
    assert isinstance(event, RequestReceived)
    assert (event.stream.opened_ns, bytes(event.payload)) == (SECOND_NS, b"body")


def test_a_request_in_one_read_as_the_c_core_says_it() -> None:
    """HEADERS, a wider window for the stream, all of the body, a wider window for the connection."""
    connection = welcomed()
    widening = frames.frame(frames.WINDOW_UPDATE, 0, 1, frames.UINT32.pack(5))
    words = headers(1) + widening + data(1, b"body", END) + frames.frame(frames.WINDOW_UPDATE, 0, 0, b"\0\0\0\5")
    (event,) = tell(connection, words)
    assert isinstance(event, RequestReceived)
    assert bytes(event.payload) == b"body"
    assert event.stream.send_window == frames.DEFAULT_WINDOW + 5


@pytest.mark.parametrize("increment", [0, frames.LARGEST_WINDOW])
def test_a_widening_that_cannot_be_costs_the_stream_there_too(increment: int) -> None:
    connection = welcomed()
    tell(
        connection,
        headers(1) + frames.frame(frames.WINDOW_UPDATE, 0, 1, frames.UINT32.pack(increment)) + data(1, b"", END),
    )
    wanted = Code.FLOW_CONTROL_ERROR if increment else Code.PROTOCOL_ERROR
    assert reset_code(said(connection), 1) is wanted


@pytest.mark.parametrize("padding", [0, 5])
def test_a_request_in_two_reads_or_with_padding(padding: int) -> None:
    connection = welcomed()
    words = headers(1) + data(1, b"body", END, padding=padding or None)
    first, second = [*tell(connection, words[:-2]), *tell(connection, words[-2:])][:2]
    assert isinstance(first, StreamOpened)
    assert not first.ended
    assert isinstance(second, DataReceived)
    assert second.stream is first.stream


@pytest.mark.parametrize("ending", [data(1, b"", END), data(1, b"", END, padding=3), headers(1, END, b"")])
def test_a_request_may_end_by_itself(ending: bytes) -> None:
    connection = welcomed()
    opened(connection)
    (event,) = tell(connection, ending)
    assert isinstance(event, DataReceived)
    assert (b"".join(event.parts), event.ended) == (b"", True)


def test_padding_is_given_back_to_the_stream() -> None:
    connection = welcomed(LIMITS)
    stream = opened(connection)
    tell(connection, data(1, b"body", padding=200))
    (word,) = said(connection)
    assert (word.kind, word.stream, frames.UINT32.unpack(word.payload)) == (frames.WINDOW_UPDATE, 1, (201,))
    assert stream.receive_window == 65_535 - 4


def test_nothing_is_said_on_a_stream_that_is_closed() -> None:
    connection = welcomed()
    stream = opened(connection)
    tell(connection, frames.reset_frame(1, 8))
    answer(connection, stream)
    connection.grant(stream, 5)
    connection.data(stream, b"x")
    connection.end(stream, b"")
    connection.reset(stream, Code.CANCEL)
    assert not connection.take()


def test_words_of_a_stream_given_up_within_its_data_are_passed_over() -> None:
    connection = welcomed()
    stream = opened(connection)
    half = data(1, b"0123456789", END)
    assert len(tell(connection, half[:14])) == 1
    connection.reset(stream, Code.CANCEL)
    assert tell(connection, half[14:]) == []
    assert connection.failed is None


def test_what_the_peer_gives_up_is_dropped() -> None:
    connection = welcomed(settings={frames.INITIAL_WINDOW_SIZE: 3})
    stream = opened(connection)
    answer(connection, stream)
    assert connection.sender.waiting_bytes == 2
    (event,) = tell(connection, frames.reset_frame(1, 8))
    assert isinstance(event, StreamDropped)
    assert event.stream is stream
    assert connection.sender.waiting_bytes == 0


def test_our_pings_are_acknowledged() -> None:
    connection = welcomed()
    connection.ping(b"alive?!!")
    assert said(connection) == [(frames.PING, 0, 0, b"alive?!!")]
    (event,) = tell(connection, frame(frames.PING, frames.ACK, 0, b"alive?!!"))
    assert isinstance(event, PingAcknowledged)
    assert event.payload == b"alive?!!"


def test_a_streaming_response_in_the_peers_windows() -> None:
    connection = welcomed(settings={frames.INITIAL_WINDOW_SIZE: 4})
    stream = opened(connection, 1, END)
    connection.begin(stream, HEAD)
    connection.data(stream, b"abc")
    connection.data(stream, b"def")
    connection.end(stream, TRAILERS.payload)
    words = said(connection)
    assert (body_of(words, 1), connection.sender.waiting_bytes) == (b"abcd", 2)
    tell(connection, frames.window_frame(1, 1))
    tell(connection, frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 5}))
    words += said(connection)
    assert body_of(words, 1) == b"abcdef"
    assert words[-1].ends
    assert not connection.streams


def test_new_windows_are_used_behind_the_word_that_they_are_known() -> None:
    """A peer holds us to its old windows until it reads our ACK (section 6.5.3)."""
    connection = welcomed(settings={frames.INITIAL_WINDOW_SIZE: 0})
    answer(connection, opened(connection, 1, END))
    connection.take()
    tell(connection, frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 100}))
    words = said(connection)
    assert [word.kind for word in words] == [frames.SETTINGS, frames.DATA, frames.HEADERS]
    assert words[0].flags == frames.ACK


@pytest.mark.parametrize(
    ("sizes", "before"), [((), b""), ((4096,), b""), ((65_536,), b""), ((0,), b"\x20"), ((100, 65_536), b"\x20")]
)
def test_a_smaller_header_table_is_told_of_once(sizes: tuple[int, ...], before: bytes) -> None:
    """RFC 7541, section 4.2: by the next block, also where the table grew again meanwhile."""
    connection = Http2Connection(Http2Limits(), read_request)
    payload = b"".join(frames.SETTING.pack(frames.HEADER_TABLE_SIZE, size) for size in sizes)
    tell(connection, frames.PREFACE + frame(frames.SETTINGS, 0, 0, payload))
    connection.take()
    for number in (1, 3):
        answer(connection, opened(connection, number, END))
    blocks = [word.payload for word in said(connection) if word.kind == frames.HEADERS]
    assert blocks == [before + HEAD.payload, TRAILERS.payload, HEAD.payload, TRAILERS.payload]
    tell(connection, frames.settings_frame({frames.HEADER_TABLE_SIZE: 0}) * bool(before))
    answer(connection, opened(connection, 5, END))
    assert said(connection)[-3].payload == HEAD.payload


def test_room_that_the_owner_gives() -> None:
    connection = welcomed(LIMITS)
    stream = opened(connection)
    connection.grant(stream, 1000)
    connection.grant(stream, 0)
    connection.grant(stream, -5)
    (word,) = said(connection)
    assert (word.stream, frames.UINT32.unpack(word.payload)) == (1, (1000,))
    for _ in range(4):
        tell(connection, data(1, bytes(16_384)))
    assert connection.failed is None
    tell(connection, data(1, bytes(2000)))
    assert reset_code(said(connection), 1) is Code.FLOW_CONTROL_ERROR


def test_smaller_frames_and_larger_windows_told_at_once() -> None:
    """Data that the window releases is sent in frames of the new size already."""
    connection = welcomed(settings={frames.INITIAL_WINDOW_SIZE: 0, frames.MAX_FRAME_SIZE: 30_000})
    answer(connection, opened(connection, 1, END), bytes(30_000))
    connection.take()
    tell(connection, frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 30_000, frames.MAX_FRAME_SIZE: 16_384}))
    words = said(connection)
    assert words[0].kind == frames.SETTINGS
    assert [len(word.payload) for word in words if word.kind == frames.DATA] == [16_384, 13_616]
