"""Header blocks: split ones put together, known ones not read again, and what is remembered bounded."""

from __future__ import annotations

import hpack as oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.blocks import KNOWN_BLOCK_BYTES, KNOWN_HEADERS, Blocks, fragment
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError, StreamError
from gateway.serving.frontends.grpc_v2.http2.hpack import Headers, encode
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples


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


class Unremembered(Blocks):
    """Decoder without a memory of blocks that are like others."""

    def _like_before(self, block: bytes) -> None:
        return None


FIELDS = st.sampled_from(
    [(b"a", b"b"), (b"a", b"c"), (b"k", b"1"), (b"bad", b""), (b"content-length", b"7"), (b"content-length", b"8")]
) | st.tuples(
    st.sampled_from([b"trace", b"x-id", b"te", b"Upper"]), st.sampled_from([b"", b"1", b"22", b"33", b"\n", b" 4"])
)


def literal(field: tuple[bytes, bytes], kind: int) -> bytes:
    """Return a field as literal: without indexing, never indexed, with indexing, or in Huffman's code."""
    name, value = field
    if kind == len(LITERAL):
        return oracle.Encoder().encode([(name, value, True)], huffman=True)
    return LITERAL[kind] + bytes([len(name)]) + name + bytes([len(value)]) + value


LITERAL = (b"\0", b"\x10", b"\x40")


@given(st.lists(st.lists(st.tuples(FIELDS, st.sampled_from([0] * 9 + [1, 2, 3])), max_size=4), max_size=12))
@settings(max_examples=examples(500))
def test_blocks_like_others_mean_what_they_mean_alone(sent: list[list[tuple[tuple[bytes, bytes], int]]]) -> None:
    def outcome(subject: Blocks, block: bytes) -> object:
        try:
            return subject.parsed(block)
        except StreamError as error:
            return error.code

    quick, slow = blocks(Counted()), Unremembered(Http2Limits(), Counted(), frozenset({b"a", b"k", b"bad"}))
    for fields in sent:
        block = b"".join(literal(*each) for each in fields)
        found, expected = outcome(quick, block), outcome(slow, block)
        if isinstance(found, tuple) and isinstance(expected, tuple):
            kept = [
                tuple(each for each in parsed[0] if each[0] in {b"a", b"k", b"bad"}) for parsed in (found, expected)
            ]
            found, expected = (kept[0], found[1]), (kept[1], expected[1])
        assert found == expected


def test_a_trace_number_of_each_call_is_not_decoded() -> None:
    subject = blocks(Counted())
    calls = [b"\0\1a\1b" + literal((b"trace", b"%02d" % number), 0) for number in range(10)]
    subject.parsed(calls[0])
    subject._decoder.decode = None  # type: ignore[assignment,method-assign]
    assert len({id(subject.parsed(call)) for call in calls}) == 1
