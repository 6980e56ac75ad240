"""Values from devices' reports: each is a number or a short text, or it is ignored."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

TEXT_LIMIT_CHARS = 200
ENTRIES_LIMIT = 64
"""Most entries of one object, such as zones or rails; further ones are ignored."""
LARGEST = 2**63 - 1


def number(value: Any) -> float | None:
    """Return `value` if it is a finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int | None:
    """Return `value` if it is an integer from 0 to what 64 bits hold, or None."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
        return None
    return value


def text(value: Any) -> str:
    """Return `value` on one line, truncated; "" if it is no text.

    It may be shown in a log or on a terminal, and lone surrogates cannot be stored. So characters that are not
    printable are replaced.
    """
    if not isinstance(value, str):
        return ""
    return "".join(c if c.isprintable() else "?" for c in value[:TEXT_LIMIT_CHARS])


def mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is an object, or an empty mapping."""
    return value if isinstance(value, dict) else {}


def numbers(value: Any) -> Iterator[tuple[str, float]]:
    """Yield the numbers of an object by their names."""
    for name, entry in list(mapping(value).items())[:ENTRIES_LIMIT]:
        found = number(entry)
        if found is not None:
            yield text(name), found
