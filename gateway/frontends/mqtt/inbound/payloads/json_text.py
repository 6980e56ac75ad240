"""JSON, and newline-delimited JSON (application/x-ndjson). msgspec bounds the nesting."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.frontends.mqtt.inbound.payloads.content_type import ContentType
from gateway.frontends.mqtt.inbound.payloads.errors import invalid


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
