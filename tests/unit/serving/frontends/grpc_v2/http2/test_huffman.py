"""The Huffman code against the hpack package's: every symbol, every pair, any bytes."""

from __future__ import annotations

import pytest
from hpack.exceptions import HPACKDecodingError
from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.huffman_table import decode_huffman
from hypothesis import given
from hypothesis import strategies as st

from gateway.serving.frontends.grpc_v2.http2 import huffman
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError

ORACLE = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)


def test_the_lengths_are_appendix_b() -> None:
    assert tuple(huffman.LENGTHS) == tuple(REQUEST_CODES_LENGTH)


def test_every_symbol_behind_every_other() -> None:
    for first in range(256):
        pairs = bytes(byte for second in range(256) for byte in (first, second))
        assert huffman.decode(ORACLE.encode(pairs)) == pairs


@given(st.binary(max_size=500))
def test_strings(string: bytes) -> None:
    assert huffman.decode(ORACLE.encode(string)) == string


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused_as_the_oracle_does(encoded: bytes) -> None:
    try:
        expected = bytes(decode_huffman(encoded))
    except HPACKDecodingError:
        with pytest.raises(ProtocolError) as caught:
            huffman.decode(encoded)
        assert caught.value.code is Code.COMPRESSION_ERROR
    else:
        assert huffman.decode(encoded) == expected


def test_a_step_is_worked_out_once_whatever_others_sent() -> None:
    """Walks all of the code's steps that can be walked; what is kept is bounded by its places and bytes."""
    for symbol in range(256):
        for byte in range(256):
            huffman.decode(ORACLE.encode(bytes([symbol, byte, symbol])))
    rows = huffman._rows()
    assert len(rows) == 256
    assert all(len(row) == 257 for row in rows)
