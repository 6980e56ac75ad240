"""Errors of the store, by the required action."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StoreError(Exception):
    """Failed operation of the store: the file, the problem and the remedy."""

    def __init__(self, problem: str, *, file: Path | str = "") -> None:
        super().__init__(f"{file}: {problem}" if file else problem)
        self.problem = problem
        self.file = str(file)


class SpaceError(StoreError):
    """No space: the disk is full, or the quota is used up. Started work is undone; existing files are kept."""


class DamagedError(StoreError):
    """A file whose content does not match its name, its digest or its format."""


class StoreAbsentError(StoreError):
    """The requested entry is not in the store."""


@contextmanager
def store_errors(file: Path) -> Iterator[None]:
    """Convert OSError to StoreError, or to SpaceError if space is missing."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            problem = f"no room on the disk: {error.strerror}; free some, or lower the store's quota"
            raise SpaceError(problem, file=file) from error
        raise StoreError(f"{error.strerror or error}; see that the folder is there and writable", file=file) from error
