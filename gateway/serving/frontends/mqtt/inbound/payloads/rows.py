"""Rows of a document: where they are, packed bytes, records by name, and values by topic. Pure functions."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from gateway.serving.frontends.mqtt.inbound.payloads.content import check_rows, invalid
from gateway.serving.frontends.mqtt.settings.paths import compile_path
from gateway.serving.frontends.mqtt.settings.route import MqttRoute, compile_layout


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


RULES_REMEMBERED = 256
"""Rules of sensors and keys whose levels are cached."""


class RowSource:
    """Source of the rows of one route."""

    def __init__(self, route: MqttRoute) -> None:
        self._route = route
        paths = [compile_path(text) if text else None for text in (route.rows, route.struct_path)]
        self._find, self._packed = (path.find if path else None for path in paths)
        self.searches = any(path is not None and path.searches for path in paths)
        self._key = topic_range(route.key) if route.key else None
        self.struct = compile_layout(route.struct) if route.struct else None
        self.is_identity = not (self._find or self.struct or route.record_name or self._key)

    def rows(self, document: Any, topic: str) -> list[Any]:
        """Return the rows of a document. Raises RequestError INVALID."""
        found = self.found(document, topic)
        if not isinstance(found, list) or not found or not isinstance(found[0], list | dict):
            return [found]
        check_rows(found)
        return found

    def found(self, document: Any, topic: str) -> Any:
        """Return what the settings find in a document: one row, or an array of rows. Raises RequestError INVALID."""
        if self.struct is not None:
            packed = document if self._packed is None else self._packed(document)
            return unpack(self.struct, packed_bytes(packed, self._route.struct_encoding, self._route.struct_path))
        found = document if self._find is None else self._find(document)
        if self._route.record_name:
            found = one_object(found, self._route.record_name, self._route.record_value)
        return found if self._key is None else {topic_part(topic, self._key): found}


def one_object(records: Any, name: str, value: str) -> Any:
    """Return the values of an array of records by their names, or `records` itself if it is no array.

    Records without a name are left out. Of records of one name the last one counts.
    """
    if not isinstance(records, list):
        return records
    named = (record for record in records if isinstance(record, Mapping) and isinstance(record.get(name), str))
    return {record[name]: record.get(value) for record in named}


@lru_cache(maxsize=RULES_REMEMBERED)
def topic_range(rule: str) -> slice:
    """Return the levels that `topic[i]` or `topic[i:]` names."""
    start = int(rule[6:-1].rstrip(":"))
    return slice(start, None if rule.endswith(":]") else start + 1)


def topic_part(topic: str, levels: slice) -> str:
    """Return levels of a topic, with / between them; "" if it has none of them."""
    return "/".join(topic.split("/")[levels])
