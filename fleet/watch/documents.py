"""Values out of what devices say of themselves: each is a number or a short text, or it is passed over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

TEXT_LIMIT_CHARS = 200
ENTRIES_LIMIT = 64
"""Zones of one device, rails, buckets: more are passed over."""
LARGEST = 2**63 - 1


def number(value: Any) -> float | None:
    """A finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int | None:
    """A whole number from 0 to what 64 bits hold."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        return None
    return value


def text(value: Any) -> str:
    """A text, cut where it is long, on one line; "" where it is none. It may come to stand in a log or a terminal, and
    nobody keeps half surrogates: what is not printable is replaced."""
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in value[:TEXT_LIMIT_CHARS])


def mapping(value: Any) -> Mapping[str, Any]:
    """An object; empty where it is none."""
    return value if isinstance(value, dict) else {}


def numbers(value: Any) -> Iterator[tuple[str, float]]:
    """The numbers of an object by their names."""
    for name, entry in list(mapping(value).items())[:ENTRIES_LIMIT]:
        found = number(entry)
        if found is not None:
            yield text(name), found
