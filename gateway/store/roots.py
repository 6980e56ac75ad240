"""Every root of trust that this device has followed, as the update agent's TUF client keeps them."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.store.errors import told_as_store_error
from gateway.store.plain import open_plain

ROOT_HISTORY = Path("metadata") / "root_history"
"""In the store: `N.root.json`."""
_NAME = re.compile(r"([1-9][0-9]{0,8})\.root\.json")


def read_roots(store: Path, limit_bytes: int, most: int) -> list[bytes]:
    """The first `most` roots, oldest first; of each a byte more than `limit_bytes` at most. Raises StoreError."""
    folder = store / ROOT_HISTORY
    with told_as_store_error(folder):
        if not folder.is_dir():
            return []
        found = sorted((int(named[1]), path) for path in folder.iterdir() if (named := _NAME.fullmatch(path.name)))
        return [read_bounded(path, limit_bytes) for _, path in found[:most]]


def read_bounded(file: Path, limit_bytes: int) -> bytes:
    """A byte more than `limit_bytes` at most: then whoever reads it says that it is too large. Raises StoreError."""
    with told_as_store_error(file), open_plain(file) as stream:
        return stream.read(limit_bytes + 1)
