"""MessagePack. msgspec bounds the nesting, and never allocates by a length that the payload only claims."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.frontends.mqtt.inbound.payloads.content_type import ContentType
from gateway.frontends.mqtt.inbound.payloads.errors import invalid


def read_msgpack(payload: bytes, _content: ContentType) -> Any:
    """Return the value of a MessagePack item. Raises RequestError INVALID."""
    try:
        return msgspec.msgpack.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, TypeError) as error:
        raise invalid(f"the payload is not application/x-msgpack: {error}") from None
