"""Root metadata that this device has followed, as the update agent's TUF client stores it."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.common.store.errors import store_errors
from gateway.common.store.plain import open_plain

ROOT_HISTORY = Path("metadata") / "root_history"
"""Folder in the store; its files are `N.root.json`."""
_NAME = re.compile(r"([1-9][0-9]{0,8})\.root\.json")


def read_roots(store: Path, limit_bytes: int, most: int) -> list[bytes]:
    """Return the first `most` roots, oldest first, each of at most `limit_bytes` + 1 bytes. Raises StoreError."""
    folder = store / ROOT_HISTORY
    with store_errors(folder):
        if not folder.is_dir():
            return []
        found = sorted((int(named[1]), path) for path in folder.iterdir() if (named := _NAME.fullmatch(path.name)))
        return [read_bounded(path, limit_bytes) for _, path in found[:most]]


def read_bounded(file: Path, limit_bytes: int) -> bytes:
    """Return at most `limit_bytes` + 1 bytes, so that the caller detects a file that is too large.

    Raises StoreError.
    """
    with store_errors(file), open_plain(file) as stream:
        return stream.read(limit_bytes + 1)
