"""Shared memory as callers create it: a folder in /dev/shm, so that pages behave as in tmpfs."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def folder() -> Iterator[Path]:
    """Create a folder for segments, removed at the end."""
    made = Path(tempfile.mkdtemp(prefix="edge-gateway-test-", dir=SHARED_MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def mappings(path: Path | str) -> int:
    """Return how many mappings of `path` this process has, even if it was unlinked."""
    with Path("/proc/self/maps").open(encoding="utf-8") as lines:
        return sum(str(path) in line for line in lines)


def descriptors(path: Path | str) -> int:
    """Return how many descriptors this process has on segments at or below `path`, and on other processes.

    Not all descriptors count: clients of other tests still close theirs while the next test runs.
    """
    found = 0
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names; some may be closed meanwhile
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{descriptor}").startswith((str(path), "anon_inode:[pidfd]"))  # noqa: PTH115
    return found


@contextmanager
def shared(size_bytes: int) -> Iterator[tuple[str, Any]]:
    """Create a segment with tritonclient. Yield its key and its handle."""
    from tritonclient.utils import shared_memory

    key = f"/edge-gateway-test-{uuid.uuid4().hex}"
    handle = shared_memory.create_shared_memory_region("mine", key, size_bytes)
    try:
        yield key, handle
    finally:
        shared_memory.destroy_shared_memory_region(handle)
