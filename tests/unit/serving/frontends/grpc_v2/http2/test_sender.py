"""Sender of frames: within the peer's windows, by turns, and without copying."""

from __future__ import annotations

import pytest

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.sender import Sender
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from tests.simulators.http2_peer import HEAD, TRAILERS, Said, body_of, parsed

LARGE = bytes(range(256)) * 1000


def sender(window: int = 65_535, frame_bytes: int = 16_384) -> tuple[Sender, list[int]]:
    ended: list[int] = []
    subject = Sender(lambda stream: ended.append(stream.id))
    subject.window, subject.frame_bytes = window, frame_bytes
    return subject, ended


def stream(number: int = 1, send_window: int = 65_535) -> Stream:
    return Stream(number, None, 0, 65_535, send_window)


def said(subject: Sender) -> list[Said]:
    return parsed(b"".join(subject.take()))


def respond(subject: Sender, target: Stream, body: bytes) -> None:
    subject.respond(target, HEAD, (body[:5], body[5:]), len(body), TRAILERS)


def test_a_response_that_fits_is_one_piece() -> None:
    subject, ended = sender()
    respond(subject, stream(3), b"12345body")
    (piece,) = subject.take()
    head, body, trailers = parsed(bytes(piece))
    assert (head.kind, head.flags, head.stream, head.payload) == (frames.HEADERS, frames.END_HEADERS, 3, HEAD.payload)
    assert body == (frames.DATA, 0, 3, b"12345body")
    assert trailers == (frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 3, TRAILERS.payload)
    assert (ended, subject.window, subject.waiting_bytes) == ([3], 65_535 - 9, 0)


@pytest.mark.parametrize(
    ("window", "send_window", "frame_bytes"),
    [(50, 90, 90), (90, 50, 90), (90, 90, 50), (50, 50, 50), (49, 90, 90), (90, 49, 90), (90, 90, 49), (1, 1, 32)],
)
def test_a_response_is_the_same_whatever_the_windows_are(window: int, send_window: int, frame_bytes: int) -> None:
    subject, ended = sender(window, frame_bytes)
    target, words = stream(1, send_window), []
    respond(subject, target, LARGE[:50])
    for _ in range(60):
        words += said(subject)
        assert subject.window >= 0
        assert target.send_window >= 0
        subject.widen(1)
        subject.widen_stream(target, 1)
    assert body_of(words, 1) == LARGE[:50]
    assert all(len(frame.payload) <= frame_bytes for frame in words if frame.kind == frames.DATA)
    assert (words[0].kind, words[-1].ends, ended, subject.waiting_bytes) == (frames.HEADERS, True, [1], 0)


@pytest.mark.parametrize("size", [65_534, 65_535])
def test_trailers_follow_at_once_a_body_that_just_fits_the_connection(size: int) -> None:
    subject, ended = sender()
    subject.held = True
    respond(subject, stream(1, 1 << 20), bytes(size))
    subject.release()
    assert said(subject)[-1].ends
    assert ended == [1]


def test_large_payloads_are_not_copied() -> None:
    subject, _ = sender(1 << 20)
    subject.data(stream(1, 1 << 20), LARGE)
    views = [piece for piece in subject.take() if isinstance(piece, memoryview)]
    assert all(view.obj is LARGE for view in views)
    assert b"".join(views) == LARGE


def test_a_window_opened_little_by_little_serves_all_by_turns() -> None:
    subject, ended = sender(window=0)
    targets = [stream(number, 1 << 20) for number in (1, 3, 5)]
    for target in targets:
        subject.begin(target, HEAD.payload)
        subject.data(target, bytes(300))
        subject.end(target, TRAILERS.payload)
    said(subject)
    for _ in range(30):
        subject.widen(10)
    words = said(subject)
    assert [frame.stream for frame in words if frame.kind == frames.DATA] == [1, 3, 5] * 10
    assert {len(body_of(words, number)) for number in (1, 3, 5)} == {100}
    subject.widen(600)
    assert sorted(ended) == [1, 3, 5]


def test_a_large_response_holds_up_no_small_one() -> None:
    subject, ended = sender(window=0)
    for target, size in ((stream(1, 1 << 20), 200_000), (stream(3), 100)):
        subject.begin(target, HEAD.payload)
        subject.data(target, bytes(size))
        subject.end(target, TRAILERS.payload)
    subject.widen(40_000)
    assert ended == [3]


def test_streams_without_a_window_are_not_looked_at() -> None:
    """An opening of one byte must not cost a look at every stream that waits."""
    subject, _ = sender()
    blocked = [stream(number, 0) for number in range(1, 201, 2)]
    for target in blocked:
        subject.data(target, b"waits")
    assert not subject._turns
    subject.widen_stream(blocked[7], 2)
    assert [(frame.stream, frame.payload) for frame in said(subject)] == [(15, b"wa")]
    assert not subject._turns
    assert subject.waiting_bytes == 100 * 5 - 2


def test_a_window_shrunk_below_nothing_waits_until_it_is_over_nothing() -> None:
    subject, _ = sender()
    target = stream(1, 10)
    subject.data(target, b"x" * 15)
    subject.widen_stream(target, -20)
    assert target.send_window == -20
    said(subject)
    subject.widen_stream(target, 20)
    assert not said(subject)
    subject.widen_stream(target, 1)
    assert body_of(said(subject), 1) == b"x"


def test_a_window_that_is_shrunk_while_the_connection_waits_loses_its_turn() -> None:
    subject, _ = sender(window=0)
    target = stream(1, 10)
    subject.data(target, b"x" * 15)
    subject.widen_stream(target, -10)
    subject.widen(100)
    assert not said(subject)


def test_a_held_transport_gets_no_data_until_it_is_released() -> None:
    subject, ended = sender()
    subject.held = True
    respond(subject, stream(), b"12345body")
    assert [frame.kind for frame in said(subject)] == [frames.HEADERS]
    assert (subject.waiting_bytes, ended) == (9, [])
    subject.widen(10)
    assert not said(subject)
    subject.release()
    words = said(subject)
    assert (body_of(words, 1), words[-1].ends, ended) == (b"12345body", True, [1])


def test_what_is_said_to_a_held_transport_is_counted() -> None:
    subject, _ = sender()
    subject.send_control(b"free")
    assert subject.unread_bytes == 0
    subject.held = True
    subject.send_control(b"12345")
    subject.begin(stream(), b"678")
    assert subject.unread_bytes == 5 + 9 + 3
    subject.release()
    assert subject.unread_bytes == 0


def test_what_a_closed_stream_waits_with_is_dropped() -> None:
    subject, ended = sender(window=4)
    target, other = stream(1), stream(3)
    subject.data(target, b"123456")
    subject.end(target, TRAILERS.payload)
    subject.data(other, b"abc")
    subject.forget(target)
    assert (subject.waiting_bytes, target.waiting_bytes, target.waiting) == (3, 0, None)
    assert list(subject._turns) == [3]
    said(subject)
    subject.widen(100)
    assert [(frame.stream, frame.payload) for frame in said(subject)] == [(3, b"abc")]
    assert not ended


def test_windows_over_two_gigabytes() -> None:
    subject, _ = sender(window=frames.LARGEST_WINDOW - 1)
    subject.widen(1)
    with pytest.raises(ProtocolError) as caught:
        subject.widen(1)
    assert caught.value.code is Code.FLOW_CONTROL_ERROR
    target = stream(1, frames.LARGEST_WINDOW - 1)
    assert subject.widen_stream(target, 1)
    assert not subject.widen_stream(target, 1)


def test_empty_data_is_not_said() -> None:
    subject, _ = sender()
    subject.data(stream(), b"")
    assert not subject.take()


@pytest.mark.parametrize("size", [16_384, 16_385, 40_000])
def test_header_blocks_larger_than_a_frame_are_continued(size: int) -> None:
    subject, ended = sender()
    subject.end(stream(5), bytes(size))
    words = said(subject)
    assert b"".join(frame.payload for frame in words) == bytes(size)
    assert [frame.kind for frame in words] == [frames.HEADERS] + [frames.CONTINUATION] * (len(words) - 1)
    assert [bool(frame.flags & frames.END_HEADERS) for frame in words] == [False] * (len(words) - 1) + [True]
    assert [frame.ends for frame in words] == [True] + [False] * (len(words) - 1)
    assert all(len(frame.payload) <= 16_384 for frame in words)
    assert ended == [5]
