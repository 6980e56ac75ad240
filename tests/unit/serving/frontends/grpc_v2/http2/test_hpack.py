"""HPACK against RFC 7541's own examples and against the hpack package, block by block."""

from __future__ import annotations

import hpack as oracle
import pytest
from hpack.exceptions import HPACKError
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.hpack import STATIC, Decoder, Headers, encode

LIMIT = 16 * 1024

FIRST = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com"))
SECOND = (*FIRST, (b"cache-control", b"no-cache"))
THIRD = (
    (b":method", b"GET"),
    (b":scheme", b"https"),
    (b":path", b"/index.html"),
    (b":authority", b"www.example.com"),
    (b"custom-key", b"custom-value"),
)
COOKIE = b"foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1"
RESPONSES = (
    (
        (b":status", b"302"),
        (b"cache-control", b"private"),
        (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        (b"location", b"https://www.example.com"),
    ),
    (
        (b":status", b"307"),
        (b"cache-control", b"private"),
        (b"date", b"Mon, 21 Oct 2013 20:13:21 GMT"),
        (b"location", b"https://www.example.com"),
    ),
    (
        (b":status", b"200"),
        (b"cache-control", b"private"),
        (b"date", b"Mon, 21 Oct 2013 20:13:22 GMT"),
        (b"location", b"https://www.example.com"),
        (b"content-encoding", b"gzip"),
        (b"set-cookie", COOKIE),
    ),
)


@pytest.mark.parametrize(
    ("block", "header", "kept"),
    [
        ("400a637573746f6d2d6b65790d637573746f6d2d686561646572", (b"custom-key", b"custom-header"), True),
        ("040c2f73616d706c652f70617468", (b":path", b"/sample/path"), False),
        ("100870617373776f726406736563726574", (b"password", b"secret"), False),
        ("82", (b":method", b"GET"), False),
    ],
    ids=["C.2.1", "C.2.2", "C.2.3", "C.2.4"],
)
def test_one_field(block: str, header: tuple[bytes, bytes], kept: bool) -> None:
    decoder = Decoder(LIMIT)
    assert decoder.decode(bytes.fromhex(block)) == (header,)
    assert decoder.changed is kept


@pytest.mark.parametrize(
    "blocks",
    [
        (
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ),
        (
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ),
    ],
    ids=["C.3 plain", "C.4 Huffman"],
)
def test_requests_of_one_connection(blocks: tuple[str, ...]) -> None:
    decoder = Decoder(LIMIT)
    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == [FIRST, SECOND, THIRD]


@pytest.mark.parametrize(
    "blocks",
    [
        (
            (
                "4803333032580770726976617465611d4d6f6e2c203231204f637420323031332032303a31333a323120474d54"
                "6e1768747470733a2f2f7777772e6578616d706c652e636f6d"
            ),
            "4803333037c1c0bf",
            (
                "88c1611d4d6f6e2c203231204f637420323031332032303a31333a323220474d54c05a04677a69707738666f6f3d"
                "4153444a4b48514b425a584f5157454f50495541585157454f49553b206d61782d6167653d333630303b2076657273696f6e3d31"
            ),
        ),
        (
            "488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
            "4883640effc1c0bf",
            (
                "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af"
                "27087f3672c1ab270fb5291f9587316065c003ed4ee5b1063d5007"
            ),
        ),
    ],
    ids=["C.5 plain", "C.6 Huffman"],
)
def test_responses_that_push_each_other_out_of_a_table_of_256_bytes(blocks: tuple[str, ...]) -> None:
    decoder = Decoder(LIMIT)
    first, *others = (bytes.fromhex(block) for block in blocks)
    shrunk = b"\x3f\xe1\x01" + first  # the RFC's examples say it by SETTINGS
    assert [decoder.decode(block) for block in (shrunk, *others)] == list(RESPONSES)


def test_the_static_table() -> None:
    assert len(STATIC) == 61
    assert all(Decoder(LIMIT).decode(bytes([0x80 | index])) == (entry,) for index, entry in enumerate(STATIC, 1))
    assert tuple(oracle.hpack.HeaderTable.STATIC_TABLE) == STATIC


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xbe",  # an entry that was not made
        b"\xff\x80\x80\x80\x80\x80\x01",  # an integer of too many bytes
        b"\xff\xff\xff\xff\xff\x0f",  # an integer over 2^31
        b"\xff",  # an integer that goes on
        b"\x40",  # a name that is not there
        b"\x40\x01a",  # a value that is not there
        b"\x40\x05ab",  # a string that ends after its block
        b"\x00\x81\xff\x00",  # Huffman padding of eight bits
        b"\x00\x81\x00\x00",  # Huffman padding of zeros
        b"\x00\x84\xff\xff\xff\xff\x00",  # EOS
        b"\x3f\xe2\x1f",  # a table of 4097 bytes, which was not offered
        b"\x82\x20",  # a table's size behind a field
    ],
    ids=bytes.hex,
)
def test_what_cannot_be_read_ends_the_connection(block: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        Decoder(LIMIT).decode(block)
    assert caught.value.code is Code.COMPRESSION_ERROR


def test_a_table_may_be_shrunk_and_grown_again() -> None:
    decoder = Decoder(LIMIT)
    assert decoder.decode(b"\x40\x01a\x01b") == ((b"a", b"b"),)
    assert decoder.decode(b"\x20\x3f\xe1\x1f\x40\x01c\x01d\xbe") == ((b"c", b"d"), (b"c", b"d"))
    with pytest.raises(ProtocolError):
        decoder.decode(b"\xbf")


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = Decoder(LIMIT)
    large = b"\x40\x01a\x7f\x81\x1f" + b"x" * 4096  # 127 + 1 + 31 * 128
    assert decoder.decode(large) == ((b"a", b"x" * 4096),)
    with pytest.raises(ProtocolError):
        decoder.decode(b"\xbe")


def test_a_list_over_the_limit_is_none_and_the_table_stays_in_step() -> None:
    decoder = Decoder(100)
    assert decoder.decode(b"\x40\x01a\x01b" + b"\xbe" * 2) is None  # 3 * 34 bytes
    assert decoder.decode(b"\xbe") == ((b"a", b"b"),)
    assert decoder.decode(b"\xbe" * 2) == ((b"a", b"b"),) * 2


def test_a_bomb_ends_the_connection_soon() -> None:
    decoder = Decoder(LIMIT)
    entry = b"\x40\x01a\x7f\x80\x1e" + b"x" * 3967
    assert decoder.decode(entry) is not None
    with pytest.raises(ProtocolError) as caught:
        decoder.decode(b"\xbe" * 16_384)
    assert caught.value.code is Code.ENHANCE_YOUR_CALM


NAMES = st.sampled_from([b":path", b"te", b"grpc-timeout", b"traceparent", b"x-a", b"x-b"]) | st.binary(max_size=20)
LISTS = st.lists(st.tuples(NAMES, st.binary(max_size=300), st.booleans()), max_size=20)
TABLES = st.none() | st.integers(0, 4096)


@given(st.lists(st.tuples(LISTS, st.booleans(), TABLES), max_size=8))
def test_what_the_hpack_package_encodes_is_read_alike(
    blocks: list[tuple[list[tuple[bytes, bytes, bool]], bool, int | None]],
) -> None:
    encoder, decoder = oracle.Encoder(), Decoder(1 << 20)
    for fields, huffman, table in blocks:
        if table is not None:
            encoder.header_table_size = table
        block = encoder.encode(fields, huffman=huffman)
        assert decoder.decode(block) == tuple((name, value) for name, value, _ in fields)


@given(st.lists(st.tuples(NAMES, st.binary(max_size=300)), max_size=20).map(tuple))
def test_what_we_encode_is_read_by_the_hpack_package_and_touches_no_table(fields: Headers) -> None:
    decoder, ours = oracle.Decoder(), Decoder(1 << 20)
    block = encode(fields)
    assert tuple((bytes(name), bytes(value)) for name, value in decoder.decode(block, raw=True)) == fields
    assert ours.decode(block) == fields
    assert not ours.changed
    assert not decoder.header_table.dynamic_entries


@given(st.lists(st.binary(min_size=1, max_size=60), max_size=4))
def test_any_bytes_are_read_as_the_hpack_package_reads_them(blocks: list[bytes]) -> None:
    theirs, ours = oracle.Decoder(1 << 20), Decoder(1 << 20)
    for block in blocks:
        try:
            expected = tuple((bytes(name), bytes(value)) for name, value in theirs.decode(block, raw=True))
        except (HPACKError, UnicodeDecodeError):
            return  # what it refuses, ours may accept only where the RFC lets it: the table above says what it must not
        assert ours.decode(block) == expected
