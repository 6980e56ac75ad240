"""Folders in memory for tests without power cuts: a controller's tests spend most time waiting for the disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
"""Linux's file system in memory. Containers may have 64 MiB of it."""
NEEDED_BYTES = 1 << 30


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory, or `tmp_path` if there is no space."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < NEEDED_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="edge-fleet-", dir=MEMORY) as folder:
        yield Path(folder)
