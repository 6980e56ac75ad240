"""Framing of messages on a stream (gRPC's "Length-Prefixed-Message")."""

from __future__ import annotations

import struct

from gateway.serving.domain.sizes import check_answer
from gateway.serving.frontends.grpc_v2.http2.sender import Piece

Encoded = tuple[list[Piece], int]
"""Length-prefixed message in pieces, of which the first begins with the whole prefix, and its size in bytes."""
PREFIX = struct.Struct(">BI")
"""Flag and length of a message."""


class PartReply(tuple[list[Piece], int]):
    """Encoded message of a stream after which others of the same request follow."""

    __slots__ = ()


def prefixed(*content: Piece) -> Encoded:
    """Return the message that consists of these pieces. Raises RequestError TOO_LARGE."""
    size = sum(map(len, content))
    check_answer(size)
    return [PREFIX.pack(0, size), *content], PREFIX.size + size
