"""Content of files of data, bounded."""

from __future__ import annotations

from pathlib import Path

from gateway.common.store.plain import open_plain


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Return the content of a plain file. Raises ValueError if it is too large, OSError."""
    with open_plain(path) as stream:
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ValueError(f"it has more than {limit_bytes} bytes; divide it")
    return content
