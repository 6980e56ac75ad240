"""Files below a folder by a path that a stranger wrote: no name leads out of it, whatever lies inside."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""A published name: nothing hidden, no "..", no separator, no control character."""
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""NONBLOCK: to open a pipe must not wait for its other end."""


def open_beneath(folder: Path, parts: Sequence[str]) -> BinaryIO | None:
    """The plain file that `parts` name, each opened within the one before and no link followed; None where there is
    none. Raises OSError for what the operating system refuses otherwise."""
    if not parts or not all(SEGMENT.fullmatch(part) for part in parts):
        return None
    try:
        descriptor = _descend(folder, parts)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    return None


def _descend(folder: Path, parts: Sequence[str]) -> int:
    here = os.open(folder, _FOLDER)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=here)
            os.close(here)
            here = inner
        return os.open(parts[-1], _FILE, dir_fd=here)
    finally:
        os.close(here)
