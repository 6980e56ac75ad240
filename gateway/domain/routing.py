"""Which version answers a request that names none."""

from __future__ import annotations

import re
from collections.abc import Iterable


def newest_version(versions: Iterable[str]) -> str | None:
    """The greatest version, digits compared as numbers ("10" after "9", "1.10" after "1.9"); None of none."""
    return max(versions, key=version_order, default=None)


def version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a version string; numbers rank above words, so that "2" is newer than "beta"."""
    parts = re.findall(r"\d+|[^\d.]+", version)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)
