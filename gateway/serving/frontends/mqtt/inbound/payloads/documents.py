"""Documents in JSON, CBOR (RFC 8949) and MessagePack, with bounds on their nesting.

msgspec bounds the nesting itself, and never allocates by a length that the payload only claims. Of CBOR, tags whose
values no channel can take are refused.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import msgspec

from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType, invalid


def read_json(payload: bytes, _content: ContentType) -> Any:
    """Return the value of a JSON text. Raises RequestError INVALID."""
    try:
        return msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the payload is not application/json: {error}") from None


def read_lines(payload: bytes, _content: ContentType) -> list[Any]:
    """Return the values of JSON lines as an array; empty lines are left out. Raises RequestError INVALID."""
    try:
        return msgspec.json.Decoder().decode_lines(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the payload is not application/x-ndjson, one JSON value a line: {error}") from None


CBOR_DEPTH = 16
REFUSED_TAGS = (0, 1, 2, 3, 4, 5, 28, 29, 30, 35, 36, 37, 52, 54, 100, 258, 260, 261, 1004, 43000)
"""Tags that are refused: times, numbers beyond 64 bits, shared references (cycles, and trees that are exponentially
larger than the payload), regular expressions, MIME, addresses, sets. A regular expression of 4 KB takes 4 s to build.
"""


def read_cbor(payload: bytes, _content: ContentType) -> Any:
    """Return the value of one CBOR item. Raises RequestError INVALID."""
    import cbor2

    stream = BytesIO(payload)
    try:
        refused = dict.fromkeys(REFUSED_TAGS, _refuse_tag)
        tree = cbor2.CBORDecoder(stream, max_depth=CBOR_DEPTH, semantic_decoders=refused).decode()
    except (cbor2.CBORError, OverflowError, MemoryError, RecursionError) as error:
        raise invalid(f"the payload is not application/cbor: {error}") from None
    if stream.tell() != len(payload):
        raise invalid(f"the payload has {len(payload) - stream.tell()} bytes after its CBOR item")
    return tree


def _refuse_tag(*_: Any) -> Any:
    raise ValueError("tagged values are not taken; send plain numbers and texts")


def read_msgpack(payload: bytes, _content: ContentType) -> Any:
    """Return the value of a MessagePack item. Raises RequestError INVALID."""
    try:
        return msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, TypeError) as error:
        raise invalid(f"the payload is not application/x-msgpack: {error}") from None
