"""Huffman code of header strings (RFC 7541, section 5.2 and appendix B), decoded a byte at a time.

The code is canonical, so the lengths define it. A step goes from a node of the code's tree over eight bits to another
node, with the symbols on the way. It is computed when it is first needed, and kept.
"""

from __future__ import annotations

import functools
from typing import Any

from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError

EOS = 256
_PLACE = 256
"""Position of the node number in a row of steps."""

LENGTHS = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505050606060606"
    "060607080f060c0a0d06070707070707070707070707070707070707070707070807080d130d0e060f050605060506060605070706060605"
    "06070605050607070707070f0b0e0d1c14161414161616171617171717171817181816171817171717151617161717181615141616171715"
    "1716161815161717151516151716171714161616171616171a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a1e"
)
"""Number of bits of each symbol's code, by symbol; the last is EOS."""

_ENDS_BITS = 7
"""Most padding bits: a string may end within a byte, filled with at most seven ones (section 5.2)."""

Step = tuple[list[Any], bytes]
"""Next row of a byte, and the symbols on the way."""


def decode(encoded: bytes) -> bytes:
    """Return the string. Raises ProtocolError COMPRESSION_ERROR if the padding is wrong or EOS occurs."""
    rows, ends = _rows(), _tree()[1]
    row, parts = rows[0], []
    for byte in encoded:
        row, symbols = row[byte] or _step(row, byte)
        if symbols:
            parts.append(symbols)
    if row[_PLACE] not in ends:
        raise _broken("a Huffman string ends within a symbol")
    return b"".join(parts)


def _step(row: list[Any], byte: int) -> Step:
    nodes, place, met = _tree()[0], row[_PLACE], bytearray()
    for shift in range(7, -1, -1):
        child = nodes[place][byte >> shift & 1]
        if child >= 0:
            place = child
            continue
        symbol = ~child
        if symbol == EOS:
            raise _broken("a Huffman string holds EOS")
        met.append(symbol)
        place = 0
    row[byte] = step = _rows()[place], bytes(met)
    return step


@functools.cache
def _rows() -> list[list[Any]]:
    """Return the steps of each node by byte, as far as they are computed, followed by the node.

    They take 0.5 MB, and 5 MB after a peer has used all of them. A bound would let that peer slow down the strings of
    all others.
    """
    return [[None] * _PLACE + [place] for place in range(len(_tree()[0]))]


@functools.cache
def _tree() -> tuple[list[list[int]], frozenset[int]]:
    """Return inner nodes as [child at 0, child at 1] (a symbol s as ~s), and the nodes at which a string may end."""
    nodes: list[list[int]] = [[0, 0]]
    code = length = 0
    for bits, symbol in sorted((bits, symbol) for symbol, bits in enumerate(LENGTHS)):
        code <<= bits - length
        length = bits
        place = 0
        for shift in range(bits - 1, 0, -1):
            side = code >> shift & 1
            if not nodes[place][side]:
                nodes.append([0, 0])
                nodes[place][side] = len(nodes) - 1
            place = nodes[place][side]
        nodes[place][code & 1] = ~symbol
        code += 1
    ends, place = [0], 0
    for _ in range(_ENDS_BITS):
        place = nodes[place][1]
        ends.append(place)
    return nodes, frozenset(ends)


def _broken(problem: str) -> ProtocolError:
    return ProtocolError(Code.COMPRESSION_ERROR, problem)
