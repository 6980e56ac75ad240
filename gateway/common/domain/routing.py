"""Choice of the version for a request that names none."""

from __future__ import annotations

import re
from collections.abc import Iterable

_END = (1, 0, "")


def newest_version(versions: Iterable[str]) -> str | None:
    """Return the greatest version, with digits compared as numbers ("10" after "9", "1.10" after "1.9"), or None."""
    return max(versions, key=version_order, default=None)


def version_order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Return the sort key of a version string: numbers rank above the end, the end above words.

    So "2" is newer than "beta", "1.1" than "1", and "2" than its pre-release "2-rc1" (as in SemVer).
    """
    parts = re.findall(r"\d+|[^\d.]+", version)
    return (*((2, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts), _END)
