"""Shared memory as callers make it: a folder of its own in /dev/shm, so that pages behave as tmpfs' do."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def folder() -> Iterator[Path]:
    """A place for segments, gone afterwards."""
    made = Path(tempfile.mkdtemp(prefix="edge-gateway-test-", dir=SHARED_MEMORY))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def mappings(path: Path) -> int:
    """How many mappings of `path` (or of what was unlinked there) this process has."""
    with Path("/proc/self/maps").open(encoding="utf-8") as lines:
        return sum(str(path) in line for line in lines)


def descriptors() -> int:
    """How many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - counted, not visited
