"""Literals NaN and infinity in JSON bodies, as Triton reads and writes them.

JSON has no such numbers (RFC 8259, 6). Triton reads the literals `NaN`, `Inf` and `Infinity`, each with or without a
minus sign, and writes `NaN`, `Infinity` and `-Infinity` (RapidJSON's kParseNanAndInfFlag and kWriteNanAndInfFlag).
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Literal

import msgspec
import numpy as np

from gateway.common.domain.errors import Fault, RequestError

LITERALS_LIMIT = 65_536
"""Most literals of one request: each is a Python object for a short time, about 1 µs of the event loop."""

PREFIX = b'{"non-finite":'
"""Beginning of a literal's object. No JSON string contains it: its quotes would be escaped."""

_LONE = re.compile(rb"\\u[dD](?:[89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..\\u[dD])[c-fC-F]..)")
_LITERAL = re.compile(rb"-?(?:NaN|Inf(?:inity)?)")


class NonFinite(msgspec.Struct, rename={"text": "non-finite"}):
    """Literal within an array of floats; numpy requests its value."""

    text: Literal["NaN", "-NaN", "Inf", "-Inf", "Infinity", "-Infinity"]

    def __float__(self) -> float:
        return float(self.text)


def malformed(body: bytes | bytearray | memoryview, error: Exception) -> str:
    """Return what is wrong with a JSON text that msgspec refused: its parser does not name lone surrogates."""
    words = str(error)
    place = re.search(r"surrogate pair \(byte (\d+)\)|Input data was truncated", words)
    end = int(place[1] or len(body)) if place else 0
    lone = _LONE.search(body, max(0, end - 18), end)
    if lone is None:
        return words
    what = f"{lone[0].decode(errors='replace')} at byte {lone.start()}"
    return f"{what} is half of a surrogate pair; send both halves, or the character in UTF-8"


def literals_to_objects(body: bytes) -> bytes:
    """Return `body` with each literal outside strings replaced by the object that `NonFinite` reads, as valid JSON.

    Raises RequestError INVALID for more than LITERALS_LIMIT of them.
    """
    unescaped = body.replace(rb"\\", b"__").replace(rb"\"", b"__")  # same length, and each quote opens or closes
    in_string = np.logical_xor.accumulate(np.frombuffer(unescaped, np.uint8) == ord('"'))
    outside = (match for match in _LITERAL.finditer(body) if not in_string[match.start()])
    found = list(islice(outside, LITERALS_LIMIT + 1))
    if len(found) > LITERALS_LIMIT:
        raise RequestError(
            Fault.INVALID,
            f"the request body holds NaN or infinity more than {LITERALS_LIMIT} times; send the tensors as binary data",
        )
    pieces: list[bytes] = []
    end = 0
    for match in found:
        pieces += (body[end : match.start()], PREFIX, b'"', match[0], b'"}')
        end = match.end()
    return b"".join((*pieces, body[end:]))
