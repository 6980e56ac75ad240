"""Parts of the standard library that Python 3.10 lacks. Those of asyncio are in `gateway.common.timeouts`."""

from __future__ import annotations

import enum
import hashlib
import sys
from collections.abc import Callable
from datetime import datetime
from typing import BinaryIO

from_iso: Callable[[str], datetime]
"""Return the time of a text in ISO 8601, in every form of it. Raise ValueError."""
if sys.version_info >= (3, 11):
    import tomllib

    from_iso = datetime.fromisoformat
else:
    import tomli as tomllib
    from backports.datetime_fromisoformat import datetime_fromisoformat

    from_iso = datetime_fromisoformat

__all__ = ("SAFE_PATH", "StrEnum", "from_iso", "sha256_of", "tomllib")

SAFE_PATH = "-P" if sys.version_info >= (3, 11) else "-I"
"""Option of Python that leaves the working directory out of its path. "-I" also ignores environment variables."""
_BLOCK_BYTES = 1 << 18


class StrEnum(str, enum.Enum):
    """Enumeration of texts that are formatted as their values."""

    __str__ = str.__str__


def sha256_of(file: BinaryIO) -> str:
    """Return the SHA-256 of what is left of `file`, as hex."""
    digest = hashlib.sha256()
    while block := file.read(_BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()
