"""Sparkplug B payloads, written field by field: an encoder that shares nothing with the gateway's reader."""

from __future__ import annotations

import struct
from typing import Any


def payload(*metrics: bytes, timestamp: int | None = None, seq: int | None = None) -> bytes:
    """Return a payload with these metrics."""
    head = b"" if timestamp is None else _integer(1, timestamp)
    body = b"".join(_bytes(2, metric) for metric in metrics)
    return head + body + (b"" if seq is None else _integer(3, seq))


def metric(name: str = "", alias: int | None = None, datatype: int | None = None, **value: Any) -> bytes:
    """Return a metric whose value is called integer, long, single, double, boolean, text, packed or null.

    Its `timestamp` and `historical` are values, too.
    """
    parts = [_bytes(1, name.encode())] if name else []
    parts += [] if alias is None else [_integer(2, alias)]
    parts += [] if datatype is None else [_integer(4, datatype)]
    return b"".join([*parts, *(_value(kind, held) for kind, held in value.items())])


def _value(kind: str, value: Any) -> bytes:
    if kind in {"single", "double"}:
        number, wire, form = (12, 5, "<f") if kind == "single" else (13, 1, "<d")
        return _tag(number, wire) + struct.pack(form, value)
    if kind in {"text", "packed"}:
        return _bytes(15, value.encode()) if kind == "text" else _bytes(16, value)
    return _integer(
        {"timestamp": 3, "historical": 5, "null": 7, "integer": 10, "long": 11, "boolean": 14}[kind], int(value)
    )


def _integer(number: int, value: int) -> bytes:
    return _tag(number, 0) + _varint(value)


def _bytes(number: int, value: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(value)) + value


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 127:
        encoded, value = encoded + bytes([value & 127 | 128]), value >> 7
    return encoded + bytes([value])
