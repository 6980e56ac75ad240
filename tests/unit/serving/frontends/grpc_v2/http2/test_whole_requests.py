"""Requests that are read in one step: the same as frame by frame, wherever the reads end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.connection import Http2Connection
from gateway.serving.frontends.grpc_v2.http2.events import (
    DataReceived,
    Event,
    RequestReceived,
    StreamDropped,
    StreamOpened,
)
from gateway.serving.frontends.grpc_v2.http2.hpack import encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from gateway.serving.frontends.grpc_v2.http2.requests import read_request
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples
from tests.simulators.http2_peer import ASKED, REQUEST, answer, data, headers, said, tell

NARROW = settings_with(
    Http2Limits(),
    max_streams=3,
    max_frame_bytes=20_000,
    stream_window_bytes=65_535,
    connection_window_bytes=66_000,
    resets_burst=4,
    controls_burst=4,
)
ENDS = frames.END_STREAM
PREFACE = frames.PREFACE + frames.settings_frame({frames.INITIAL_WINDOW_SIZE: 10})


class FrameByFrame(Http2Connection):
    """A connection that takes no shortcut."""

    def read_request(self, *_: Any) -> int:
        return 0


def announced(size: int) -> bytes:
    """Return a request's head with its content-length."""
    return encode((*ASKED, (b"content-length", b"%d" % size)))


def widening(number: int, increment: int) -> bytes:
    return frames.window_frame(number, increment)


BODY = data(1, b"message", ENDS)
ONE_STEP = {
    "usual": headers(1) + BODY,
    "widened": headers(1) + widening(1, 5) + BODY,
    "announced": headers(1, block=announced(7)) + BODY,
    "then widened": headers(1) + BODY + widening(0, 5),
    "largest": headers(1) + data(1, bytes(20_000), ENDS),
}
STEPS = {
    "padded": headers(1) + data(1, b"message", ENDS, padding=3),
    "not ended": headers(1) + data(1, b"message"),
    "empty": headers(1) + data(1, b"", ENDS),
    "head ends": headers(1, ENDS) + BODY,
    "of another stream": headers(3) + BODY,
    "widened twice": headers(1) + widening(1, 5) + widening(1, 5) + BODY,
    "widened by nothing": headers(1) + widening(1, 0) + BODY,
    "widened too far": headers(1) + widening(1, frames.LARGEST_WINDOW) + BODY,
    "another is widened": headers(1) + widening(0, 5) + BODY,
    "wrong length": headers(1, block=announced(8)) + BODY,
    "too large": headers(1) + data(1, bytes(20_001), ENDS),
    "no request": headers(1, block=encode(ASKED[1:])) + BODY,
    "of an even stream": headers(2) + data(2, b"message", ENDS),
}


def greeted(kind: type[Http2Connection], limits: Http2Limits = NARROW) -> Http2Connection:
    connection = kind(limits, read_request)
    tell(connection, PREFACE)
    said(connection)
    return connection


@pytest.mark.parametrize("name", [*ONE_STEP, *STEPS])
def test_what_is_read_in_one_step(name: str) -> None:
    connection = greeted(Http2Connection)
    kinds = [type(event) for event in tell(connection, {**ONE_STEP, **STEPS}[name])]
    assert kinds == [RequestReceived] if name in ONE_STEP else RequestReceived not in kinds


def test_one_step_leaves_out_no_rule() -> None:
    """The second of a pair is refused, dropped or breaks the connection, as frame by frame."""
    for before, words in (
        (headers(5), headers(3) + data(3, b"a", ENDS)),
        (b"".join(map(headers, (1, 3, 5))), headers(7) + data(7, b"a", ENDS)),
        (frames.frame(frames.HEADERS, 0, 1, REQUEST[:4]), headers(3) + data(3, b"a", ENDS)),
    ):
        connection = greeted(Http2Connection)
        tell(connection, before)
        assert not any(isinstance(event, RequestReceived) for event in tell(connection, words))
    fresh = Http2Connection(NARROW, read_request)
    tell(fresh, frames.PREFACE + ONE_STEP["usual"])
    assert fresh.failed is not None, "the first frame must be SETTINGS"


# ---- any bytes, cut anywhere -----------------------------------------------------------------------------------------
def seen(events: list[Event]) -> list[Any]:
    """Return events without a difference between one step and two; bodies as a whole."""
    told: list[Any] = []
    for event in events:
        number = event.stream.id  # type: ignore[union-attr]
        if isinstance(event, StreamOpened | RequestReceived):
            told.append(["opened", number, event.stream.headers])
            if isinstance(event, StreamOpened) and event.ended:
                told.append(["body", number, b"", True])
        if isinstance(event, DataReceived | RequestReceived):
            whole = isinstance(event, RequestReceived)
            payload, ended = bytes(event.payload) if whole else b"".join(event.parts), whole or event.ended
            if told and told[-1][:2] == ["body", number]:
                told[-1] = ["body", number, told[-1][2] + payload, ended]
            else:
                told.append(["body", number, payload, ended])
        elif isinstance(event, StreamDropped):
            told.append(["dropped", number])
    return told


def facts(connection: Http2Connection, events: list[Event]) -> dict[str, Any]:
    """Return all that the owner and the peer learn; without the last stream's events if the connection fails."""
    last = max(connection.streams, default=0) if connection.failed else -1
    windows = {number: (each.state, each.send_window) for number, each in connection.streams.items()}
    for stream in list(connection.streams.values()):
        answer(connection, stream, b"reply" * stream.id)
    return {
        "events": [event for event in seen(events) if event[1] != last],
        "said": said(connection),
        "failed": connection.failed and connection.failed.code,
        "open": windows,
        "window": connection.sender.window,
    }


HEADS = st.sampled_from([REQUEST] * 9 + [encode(ASKED[1:]), b"\xff", REQUEST * 300])
SIZES = st.sampled_from([1, 7, 300, 16_000, 20_000])
WIDER = st.lists(
    st.tuples(st.sampled_from([0] * 9 + [2]), st.sampled_from([9] * 9 + [0, frames.LARGEST_WINDOW])), max_size=1
)


@st.composite
def requests(draw: st.DrawFn) -> list[bytes]:
    """Draw requests in the order of their numbers; in each at most a few things are unusual."""
    number, told = -1, []
    for _ in range(draw(st.integers(0, 7))):
        number = max(1, number + draw(st.sampled_from([2] * 9 + [1, 0, -2, 4])))
        size, odd = (
            draw(SIZES),
            draw(st.sampled_from([""] * 5 + ["length", "padding", "flags", "size", "reset", "head"])),
        )
        block = announced(size + draw(st.booleans())) if odd == "length" else draw(HEADS)
        words = headers(number, ENDS if odd == "head" else 0, block)
        for other, increment in draw(WIDER) * draw(st.sampled_from([1, 1, 2])):
            words += widening(number + other, increment)
        size = draw(st.sampled_from([0, 20_001])) if odd == "size" else size
        words += data(number, bytes(size), 0 if odd == "flags" else ENDS, 9 if odd == "padding" else None)
        for stream, increment in draw(WIDER):  # of the connection, as C core does, or of a stream
            words += widening(stream and number, increment) * draw(st.sampled_from([1, 1, 2]))
        told.append(words + frames.reset_frame(number, 8) * (odd == "reset"))
    return told


CUTS = st.lists(st.integers(1, 40) | st.integers(1, 30_000), max_size=12)


def carried(kind: type[Http2Connection], parts: list[bytes], cuts: list[int]) -> dict[str, Any]:
    """Return what becomes of these bytes, cut there; the connection drains between two parts."""
    connection, events = greeted(kind), list[Event]()
    for place, words in enumerate(parts):
        if place:
            connection.drain()
        begin = 0
        for size in [*cuts, len(words)]:
            if begin < len(words):
                events += _kept(tell(connection, words[begin : begin + size]))
            begin += size
    return facts(connection, events)


def _kept(events: list[Event]) -> list[Event]:
    """Copy payloads, which are lent until the next read."""
    for event in events:
        if isinstance(event, RequestReceived):
            event.payload = memoryview(bytes(event.payload))
        elif isinstance(event, DataReceived):
            event.parts = [memoryview(bytes(part)) for part in event.parts]
    return events


@given(requests(), st.integers(0, 7), CUTS)
@settings(max_examples=examples(500))
def test_any_split_is_equal_to_frame_by_frame(asked: list[bytes], drained: int, cuts: list[int]) -> None:
    parts = [b"".join(asked[:drained]), b"".join(asked[drained:])] if drained < len(asked) else [b"".join(asked)]
    expected = carried(FrameByFrame, parts, [])
    assert carried(Http2Connection, parts, []) == expected
    assert carried(Http2Connection, parts, cuts) == expected
