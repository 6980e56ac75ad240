"""CBOR (RFC 8949). The nesting is bounded, and tags of shared references are refused.

The type of each value is checked where it is used, which refuses other tags: dates, big decimals, regular expressions.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

from gateway.frontends.mqtt.payloads.content_type import ContentType
from gateway.frontends.mqtt.payloads.errors import invalid

CBOR_DEPTH = 16
SHARED_VALUE_TAGS = (28, 29)
"""CBOR tags of shared references: they form cycles, and trees that are exponentially larger than the payload."""


def read_cbor(payload: bytes, _content: ContentType) -> Any:
    """Return the value of one CBOR item. Raises RequestError INVALID."""
    import cbor2

    stream = BytesIO(payload)
    try:
        refused = dict.fromkeys(SHARED_VALUE_TAGS, _refuse_tag)
        tree = cbor2.CBORDecoder(stream, max_depth=CBOR_DEPTH, semantic_decoders=refused).decode()
    except (cbor2.CBORError, OverflowError, MemoryError, RecursionError) as error:
        raise invalid(f"the payload is not application/cbor: {error}") from None
    if stream.tell() != len(payload):
        raise invalid(f"the payload has {len(payload) - stream.tell()} bytes after its CBOR item")
    return tree


def _refuse_tag(*_: Any) -> Any:
    raise ValueError("shared references are not taken")
