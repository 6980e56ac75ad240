"""Folders in memory, for tests that cut no power: of what a controller writes, waiting for the disk is the longest."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory; containers may have 64 MiB of it."""
NEEDED_BYTES = 1 << 30


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """As `tmp_path`, which it is where there is no room in memory."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < NEEDED_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="edge-fleet-", dir=MEMORY) as folder:
        yield Path(folder)
