"""Layouts of packed bytes in the letters of Python's struct, checked when the configuration is read. Pure functions."""

from __future__ import annotations

import re
import struct

LAYOUT_LIMIT_CHARS = 128
"""Longest layout."""
FIELDS_LIMIT = 1_024
"""Most numbers of one packed row."""
_FORM = re.compile(r"[<>!]( *\d{0,4}[xbBhHiIlLqQefd?])+ *")


def compile_layout(layout: str) -> struct.Struct:
    """Return the compiled layout.

    Raises ValueError if it has no byte order, other types than numbers, or too many fields.
    """
    if len(layout) > LAYOUT_LIMIT_CHARS or not _FORM.fullmatch(layout):
        raise ValueError("a layout is < or > (the byte order) and types of Python's struct: bBhHiIqQ, efd, ? and x")
    compiled = struct.Struct(layout)
    fields = sum(int(count or 1) for count, code in re.findall(r"(\d*)([a-zA-Z?])", layout) if code != "x")
    if not 0 < fields <= FIELDS_LIMIT:
        raise ValueError(f"a layout has 1 to {FIELDS_LIMIT} fields, not {fields}")
    return compiled
