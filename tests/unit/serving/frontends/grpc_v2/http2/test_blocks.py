"""Header blocks: split ones put together, known ones not read again, and what is remembered bounded."""

from __future__ import annotations

import hpack as oracle
import pytest

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.blocks import KNOWN_BLOCK_BYTES, KNOWN_HEADERS, Blocks, fragment
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError, StreamError
from gateway.serving.frontends.grpc_v2.http2.hpack import Headers, encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from tests.simulators.constants import settings_with


class Counted:
    """Parser of headers that counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, headers: Headers) -> Headers:
        self.count += 1
        if (b"bad", b"") in headers:
            raise StreamError(Code.PROTOCOL_ERROR, "bad")
        return headers


def blocks(read: Counted, **limits: int) -> Blocks:
    return Blocks(settings_with(Http2Limits(), **limits), read, frozenset({b"a", b"k", b"bad"}))


def test_a_block_that_touches_no_table_is_read_once() -> None:
    read = Counted()
    subject = blocks(read)
    block = encode(((b"a", b"b"),))
    assert subject.parsed(block) is subject.parsed(block)
    assert read.count == 1


def test_a_block_of_indices_is_read_again_once_the_table_moved() -> None:
    read, encoder = Counted(), oracle.Encoder()
    subject = blocks(read)
    assert subject.parsed(encoder.encode([("k", "1")])) == (((b"k", b"1"),), None)
    index = encoder.encode([("k", "1")])
    assert subject.parsed(index) == subject.parsed(index) == (((b"k", b"1"),), None)
    assert read.count == 1
    subject.skim(b"\x40\x01k\x012")  # pushes the entry to the next index
    assert subject.parsed(index) == (((b"k", b"2"),), None)
    assert read.count == 2


def test_fields_that_a_head_does_not_depend_on_cost_no_reading() -> None:
    read = Counted()
    subject = blocks(read)
    headers = {id(subject.parsed(encode(((b"a", b"b"), (b"trace", b"%d" % number))))[0]) for number in range(10)}
    assert (len(headers), read.count) == (1, 1)
    for broken in ((b"Trace", b"1"), (b"trace", b"\n"), (b"te", b"gzip"), (b"connection", b"close"), (b":path", b"/")):
        subject.parsed(encode(((b"a", b"b"), broken)))
    assert read.count == 6


def test_a_head_that_was_refused_is_refused_again() -> None:
    subject = blocks(Counted())
    for _ in range(2):
        with pytest.raises(StreamError):
            subject.parsed(encode(((b"bad", b""),)))


def test_what_is_remembered_is_bounded() -> None:
    read = Counted()
    subject = blocks(read)
    for number in range(10 * KNOWN_HEADERS):
        subject.parsed(encode(((b"a", b"%d" % number),)))
        assert len(subject.known) <= KNOWN_HEADERS
    long = encode(((b"a", b"x" * KNOWN_BLOCK_BYTES),))
    subject.parsed(long)
    assert long not in subject.known
    assert len(subject._essences) <= KNOWN_HEADERS


def test_a_list_too_large_is_none() -> None:
    assert blocks(Counted(), max_header_bytes=100).parsed(encode(((b"a", b"x" * 100),))) is None


def test_parts_are_put_together() -> None:
    subject = blocks(Counted())
    subject.begin(frames.END_STREAM, 5, memoryview(b"ab"))
    assert subject.unfinished
    assert subject.go_on(0, 5, memoryview(b"cd")) is None
    assert subject.go_on(frames.END_HEADERS, 5, memoryview(b"ef")) == (frames.END_STREAM, b"abcdef")
    assert not subject.unfinished


@pytest.mark.parametrize("number", [0, 3, 7])
def test_a_part_of_another_stream(number: int) -> None:
    subject = blocks(Counted())
    subject.begin(0, 5, memoryview(b""))
    with pytest.raises(ProtocolError) as caught:
        subject.go_on(0, number, memoryview(b""))
    assert caught.value.code is Code.PROTOCOL_ERROR


def test_a_part_without_a_beginning() -> None:
    with pytest.raises(ProtocolError) as caught:
        blocks(Counted()).go_on(0, 1, memoryview(b""))
    assert caught.value.code is Code.PROTOCOL_ERROR


def test_a_block_of_too_many_or_too_large_parts() -> None:
    many = blocks(Counted(), max_continuations=3)
    many.begin(0, 1, memoryview(b""))
    for _ in range(3):
        many.go_on(0, 1, memoryview(b""))
    large = blocks(Counted(), max_header_bytes=100)
    large.begin(0, 1, memoryview(bytes(100)))
    large.go_on(0, 1, memoryview(bytes(300)))
    for subject in (many, large):
        with pytest.raises(ProtocolError) as caught:
            subject.go_on(0, 1, memoryview(b"x"))
        assert caught.value.code is Code.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    ("flags", "payload", "expected"),
    [
        (frames.PADDED, b"\x02abc--", b"abc"),
        (frames.PADDED, b"\x00abc", b"abc"),
        (frames.PADDED, b"\x03---", b""),
        (frames.PRIORITISED, b"12345abc", b"abc"),
        (frames.PADDED | frames.PRIORITISED, b"\x0112345abc-", b"abc"),
    ],
)
def test_padding_and_priority_are_taken_off(flags: int, payload: bytes, expected: bytes) -> None:
    assert fragment(flags, 1, memoryview(payload)) == expected


@pytest.mark.parametrize(
    ("flags", "payload", "code"),
    [
        (frames.PADDED, b"", Code.FRAME_SIZE_ERROR),
        (frames.PADDED, b"\x04abc", Code.PROTOCOL_ERROR),
        (frames.PRIORITISED, b"1234", Code.FRAME_SIZE_ERROR),
        (frames.PADDED | frames.PRIORITISED, b"\x0312345ab", Code.PROTOCOL_ERROR),
    ],
)
def test_padding_and_priority_that_do_not_fit(flags: int, payload: bytes, code: Code) -> None:
    with pytest.raises(ProtocolError) as caught:
        fragment(flags, 1, memoryview(payload))
    assert caught.value.code is code
