"""Floods of frames that ask for nothing: each kind ends the connection at its bound, heavy honest use never does."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import hpack as oracle
import pytest

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.errors import Code
from gateway.serving.frontends.grpc_v2.http2.events import DataReceived, RequestReceived, StreamOpened
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from tests.simulators.http2_floods import FLOODS, LARGE_ENTRY, STREAMS
from tests.simulators.http2_peer import (
    ASKED,
    REQUEST,
    SECOND_NS,
    answer,
    asked,
    data,
    goaway,
    headers,
    opened,
    said,
    tell,
    welcomed,
)

END = frames.END_STREAM
LIMITS = Http2Limits()
frame = frames.frame


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_ends_the_connection_at_its_bound_and_not_before(name: str) -> None:
    flood, bound = FLOODS[name]
    words, connection, count = flood(), welcomed(), 0
    while connection.failed is None:
        tell(connection, next(words))
        connection.take() if connection.failed is None else None
        count += 1
        assert count <= bound + 5
    assert connection.failed.code is Code.ENHANCE_YOUR_CALM
    assert count >= bound - 1
    last = goaway(said(connection))
    assert last is not None
    assert last[1] is Code.ENHANCE_YOUR_CALM
    assert tell(connection, next(words) * 100) == []
    assert not connection.take()


def test_an_hpack_bomb_ends_the_connection_with_its_first_block() -> None:
    connection = welcomed()
    tell(connection, headers(1, END, REQUEST + LARGE_ENTRY))
    tell(connection, headers(3, END, b"\xbe" * 16_000))
    assert connection.failed is not None
    assert connection.failed.code is Code.ENHANCE_YOUR_CALM


def test_a_block_without_end_is_not_kept() -> None:
    connection = welcomed()
    tell(connection, frame(1, 0, 1, bytes(60_000)))
    tell(connection, frame(9, 0, 1, bytes(10_000)))
    assert connection.failed is not None
    assert connection.failed.code is Code.ENHANCE_YOUR_CALM


def test_a_control_frame_too_large_to_be_honest_ends_the_connection_before_it_is_there() -> None:
    connection = welcomed()
    tell(connection, frames.HEADER.pack(2, 0, frames.GOAWAY, 0, 0))
    assert connection.failed is not None
    assert connection.failed.code is Code.ENHANCE_YOUR_CALM


def test_replies_that_are_asked_for_and_not_read() -> None:
    """Errors end their streams at once, so that the bound on streams bounds nothing: what is unread does."""
    connection = welcomed()
    connection.hold()
    said_bytes = 0
    for number in STREAMS:
        for event in tell(connection, headers(number, END)):
            assert isinstance(event, StreamOpened)
            connection.end(event.stream, REQUEST)
        said_bytes += sum(map(len, connection.take()))
        if connection.failed is not None:
            break
    assert connection.failed.code is Code.ENHANCE_YOUR_CALM
    assert LIMITS.max_unread_bytes < said_bytes < LIMITS.max_unread_bytes + 1000


# ---- honest use -----------------------------------------------------------------------------------------------------
def serve(connection: Http2Connection, words: bytes, now_ns: int) -> None:
    for event in tell(connection, words, now_ns):
        if isinstance(event, RequestReceived) or (isinstance(event, DataReceived) and event.ended):
            answer(connection, event.stream)
    connection.take()
    assert connection.failed is None


def test_ten_thousand_requests_with_a_window_update_and_a_ping_each() -> None:
    """gRPC's clients do so: windows given back per reply, and (Go's) a PING to measure the round trip."""
    connection = welcomed()
    for number in itertools.islice(STREAMS, 10_000):
        update = frames.window_frame(0, 5) + frames.window_frame(number, 5)
        serve(connection, asked(number) + update + frame(frames.PING, 0, 0, bytes(8)), SECOND_NS)
    assert not connection.streams
    assert connection.sender.waiting_bytes == 0


def test_five_hundred_calls_cancelled_a_minute_for_an_hour() -> None:
    connection = welcomed()
    for count, number in enumerate(itertools.islice(STREAMS, 30_000)):
        serve(connection, headers(number) + data(number, b"part") + frames.reset_frame(number, 8), count * 120_000_000)


def test_a_keepalive_every_ten_seconds_for_a_day() -> None:
    connection = welcomed()
    for count in range(8640):
        serve(connection, frame(frames.PING, 0, 0, bytes(8)), SECOND_NS + count * 10 * SECOND_NS)


def test_a_request_of_many_small_frames() -> None:
    connection = welcomed()
    serve(connection, headers(1) + data(1, b"x") * 10_000 + data(1, b"x", END), SECOND_NS)


# ---- what an attacker's byte costs ----------------------------------------------------------------------------------
def calls_in(act: Callable[[], object]) -> int:
    """Return the number of Python functions called: a cost that does not depend on the machine."""
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def waiting(connection: Http2Connection, streams: int) -> None:
    """Answer streams whose data waits for the peer's windows."""
    for number in itertools.islice(STREAMS, streams):
        answer(connection, opened(connection, number, END), bytes(100_000))
    connection.take()


def test_settings_that_say_the_same_thing_again_and_again_cost_their_bytes() -> None:
    connection = welcomed(settings={frames.INITIAL_WINDOW_SIZE: 0})
    waiting(connection, 100)
    entries = b"".join(frames.SETTING.pack(4, value) for value in (0, 1) * 5000 + (0,))
    assert calls_in(lambda: tell(connection, frame(frames.SETTINGS, 0, 0, entries))) < 1000
    assert not connection.failed


def test_windows_of_one_byte_cost_no_look_at_every_stream() -> None:
    connection = welcomed()
    waiting(connection, 100)
    first = calls_in(lambda: tell(connection, frames.window_frame(0, 1)))
    assert first < 60
    blocked = welcomed(settings={frames.INITIAL_WINDOW_SIZE: 0})
    waiting(blocked, 100)
    assert calls_in(lambda: tell(blocked, frames.window_frame(0, 1))) < 60


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_small_chunks_cost_what_they_are(chunk: int) -> None:
    connection = welcomed()
    words = frame(1, 4, 1, encode((*ASKED, (b"x", bytes(8000)))))
    pieces = [words[place : place + chunk] for place in range(0, len(words), chunk)]
    cost = calls_in(lambda: [tell(connection, piece) for piece in pieces])
    assert cost < 15 * len(pieces) + 500


def test_blocks_cost_their_bytes_whatever_they_hold() -> None:
    encoder = oracle.Encoder()
    fields = [(bytes([97 + count % 26]) * 8, bytes([count % 251]) * 8) for count in range(300)]
    blocks = [REQUEST + encoder.encode(fields[place : place + 30], huffman=True) for place in range(0, 300, 30)]
    blocks += [
        REQUEST + b"\x40\x00\x00" * 400,
        REQUEST + b"\xbe" * 400,
        REQUEST + b"\x3e\x20" * 0 + b"\x10\x00\x00" * 400,
    ]
    for block in blocks:
        connection = welcomed()
        cost = calls_in(lambda block=block, connection=connection: tell(connection, headers(1, END, block)))
        assert cost < 20 * len(block) + 500


def test_what_a_connection_remembers_is_bounded() -> None:
    connection = welcomed()
    for number in itertools.islice(STREAMS, 3000):
        fresh = encode((*ASKED, (b"x", b"%d" % number)))
        serve(connection, headers(number, 0, fresh) + data(number, b"x", END), SECOND_NS)
    for number in range(6001, 8001, 2):
        connection.reset(opened(connection, number), Code.CANCEL)
        connection.take()
    assert len(connection._blocks.known) <= 64
    assert len(connection._closed_by_us) == 1000
    assert not connection.streams
