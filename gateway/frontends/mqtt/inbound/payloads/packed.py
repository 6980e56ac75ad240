"""Packed bytes: fields of one layout after the other, as the structs of firmware are. Pure functions."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import Any

from gateway.frontends.mqtt.inbound.payloads.errors import invalid
from gateway.frontends.mqtt.inbound.payloads.limits import check_rows


def unpack(layout: struct.Struct, packed: bytes) -> list[list[Any]]:
    """Return one row per layout in `packed`. Raises RequestError INVALID if the size is no multiple of the layout's."""
    if not packed or len(packed) % layout.size:
        raise invalid(f"{len(packed)} packed bytes are no multiple of the {layout.size} of struct '{layout.format}'")
    check_rows(len(packed) // layout.size)
    return [list(row) for row in layout.iter_unpack(packed)]


def packed_bytes(value: Any, encoding: str, path: str) -> bytes:
    """Return the bytes that a document holds, as such or as text. Raises RequestError INVALID that names the path."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise invalid(f"'{path}' holds no packed bytes: found {type(value).__name__}, expected text in {encoding}")
    try:
        return bytes.fromhex(value) if encoding == "hex" else base64.b64decode(value, validate=True)
    except (ValueError, binascii.Error) as error:
        raise invalid(f"'{path}' is no text in {encoding}: {error}; correct struct_path or struct_encoding") from None
