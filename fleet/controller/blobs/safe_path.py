"""Safe access to files below a folder by an untrusted path: no name and no link leads outside."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""Published name: not hidden, no "..", no separator, no control character."""
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENAMETOOLONG})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""NONBLOCK: opening a named pipe must not wait for its other end."""


def open_beneath(folder: Path, parts: Sequence[str]) -> BinaryIO | None:
    """Open the regular file that `parts` name, following no links. Return None if there is none.

    Each part is opened relative to the one before. Raise OSError for other failures.
    """
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
