"""Frames whatever the chunks they come in, and at a cost that the chunks do not change."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.reader import FrameReader
from tests.simulators.http2_peer import data

UNKNOWN = 0x77
Seen = tuple[Any, ...]


class Listener:
    """Listener that records what it is told.

    DATA is recorded with its content; DATA frames in a row that may come as one are one.
    """

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.checks = 0
        self._begun = (0, 0, 0)
        self._body = b""

    def check_frame(self, kind: int, length: int) -> bool:
        self.checks += 1
        return kind not in (frames.DATA, UNKNOWN)

    def read_request(self, data: memoryview, place: int, number: int, length: int) -> int:
        return 0

    def read_frame(self, kind: int, flags: int, number: int, payload: memoryview) -> None:
        self.seen.append((kind, flags, number, bytes(payload)))

    def begin_data(self, flags: int, number: int, length: int, content: int) -> None:
        self._begun, self._body = (flags, number, length), b""
        if not content:
            self.seen.append((frames.DATA, *self._begun, b""))

    def read_data(self, parts: Sequence[memoryview], last: bool) -> None:
        assert all(parts)
        self._body += b"".join(parts)
        if last:
            self._add(*self._begun, self._body)

    def _add(self, flags: int, number: int, length: int, body: bytes) -> None:
        kind, *last = self.seen[-1] if self.seen else (None,)
        in_a_row = kind == frames.DATA and last[:2] == [0, number] and last[2] == len(last[3]) > 0
        if in_a_row and length == len(body):
            length, body = length + last[2], last[3] + body
            self.seen.pop()
        self.seen.append((frames.DATA, flags, number, length, body))


def read(words: bytes, cuts: list[int]) -> Listener:
    reader, listener = FrameReader(), Listener()
    edges = sorted({0, len(words), *(cut % (len(words) + 1) for cut in cuts)})
    for start, stop in itertools.pairwise(edges):
        reader.read(memoryview(words[start:stop]), listener)
    return listener


STREAMS = st.integers(0, 2**31 - 1)
CONTROL = st.builds(frames.frame, st.integers(1, 9), st.integers(0, 255), STREAMS, st.binary(max_size=40))
STRANGE = st.builds(frames.frame, st.just(UNKNOWN), st.integers(0, 255), STREAMS, st.binary(max_size=40))
PLAIN = st.builds(data, STREAMS, st.binary(max_size=60), st.sampled_from([0, 1]))
SAME = st.builds(data, st.just(1), st.binary(max_size=20), st.sampled_from([0, 0, 1]))
PADDED = st.builds(data, STREAMS, st.binary(max_size=60), st.sampled_from([0, 1]), st.integers(0, 255))


@given(st.lists(CONTROL | STRANGE | PLAIN | SAME | PADDED, max_size=8), st.lists(st.integers(0, 5000), max_size=30))
def test_chunks_change_nothing(words: list[bytes], cuts: list[int]) -> None:
    whole = frames.PREFACE + b"".join(words)
    assert read(whole, cuts).seen == read(whole, []).seen == read(whole, list(range(len(whole)))).seen


def test_data_frames_of_a_stream_come_as_one_until_its_end() -> None:
    reader, listener = FrameReader(), Listener()
    words = data(1, b"abc") + data(1, b"de") + data(1, b"", 1) + data(1, b"f", 1) + data(1, b"g") + data(3, b"h")
    got: list[list[bytes]] = []
    listener.read_data = lambda parts, last: got.append([bytes(part) for part in parts])  # type: ignore[method-assign]
    reader.read(memoryview(frames.PREFACE + words + data(3, b"longer") + data(3, b"i")[:9]), listener)
    assert got == [[b"abc", b"de"], [b"f"], [b"g"], [b"h"], [b"longer"]]
    reader.read(memoryview(b"i" + data(5, b"x") * (frames.RUN_FRAMES + 1)), listener)
    assert got[5:] == [[b"i"], [b"x"] * frames.RUN_FRAMES, [b"x"]]


def test_what_is_seen() -> None:
    words = frames.PREFACE + frames.frame(frames.PING, 1, 0, b"12345678") + data(3, b"body", 1, padding=2)
    seen = read(words + frames.frame(UNKNOWN, 0, 0, b"passed over") + data(5, b""), []).seen
    assert seen == [(frames.PING, 1, 0, b"12345678"), (0, 9, 3, 7, b"body"), (0, 0, 5, 0, b"")]


def test_the_reserved_bit_is_ignored() -> None:
    assert read(frames.PREFACE + frames.frame(frames.PING, 0, 2**31 + 5), []).seen == [(frames.PING, 0, 5, b"")]


def test_a_frame_that_comes_byte_by_byte_is_looked_at_twice() -> None:
    words = frames.PREFACE + frames.frame(frames.HEADERS, 0, 1, bytes(5000))
    listener = read(words, list(range(len(words))))
    assert listener.checks == 2


def test_data_is_handed_on_as_it_comes_and_not_kept() -> None:
    reader, listener = FrameReader(), Listener()
    reader.read(memoryview(frames.PREFACE + frames.HEADER.pack(0, 1000, frames.DATA, 0, 1)), listener)
    chunk = bytearray(b"x" * 100)
    lent: list[memoryview] = []
    listener.read_data = lambda parts, last: lent.extend(parts)  # type: ignore[method-assign]
    reader.read(memoryview(chunk), listener)
    assert lent[0].obj is chunk
    assert not reader._rest


@pytest.mark.parametrize("words", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX", b"\x16\x03\x01"])
def test_no_preface(words: bytes) -> None:
    for cuts in ([], list(range(len(words)))):
        with pytest.raises(ProtocolError) as caught:
            read(words, cuts)
        assert caught.value.code is Code.PROTOCOL_ERROR


@pytest.mark.parametrize(
    ("payload", "code"),
    [(b"", Code.FRAME_SIZE_ERROR), (b"\x01", Code.PROTOCOL_ERROR), (b"\x05abcd", Code.PROTOCOL_ERROR)],
)
def test_padding_as_long_as_its_frame(payload: bytes, code: Code) -> None:
    words = frames.PREFACE + frames.frame(frames.DATA, frames.PADDED, 1, payload)
    for cuts in ([], list(range(len(words)))):
        with pytest.raises(ProtocolError) as caught:
            read(words, cuts)
        assert caught.value.code is code
