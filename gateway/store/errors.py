"""What can be wrong with the store, by what has to be done about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class StoreError(Exception):
    """The store cannot do what was asked: which file, what happened, what to do next."""

    def __init__(self, problem: str, *, file: Path | str = "") -> None:
        super().__init__(f"{file}: {problem}" if file else problem)
        self.problem = problem
        self.file = str(file)


class SpaceError(StoreError):
    """No room: the disk is full, or the quota is used up. What was begun is gone; nothing that was there is."""


class DamagedError(StoreError):
    """A file is not what its name, its digest or its format promises."""


class AbsentError(StoreError):
    """What was asked for is not in the store."""


@contextmanager
def told_as_store_error(file: Path) -> Iterator[None]:
    """Whatever the operating system refuses becomes a StoreError, and SpaceError where room is lacking."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            problem = f"no room on the disk: {error.strerror}; free some, or lower the store's quota"
            raise SpaceError(problem, file=file) from error
        raise StoreError(f"{error.strerror or error}; see that the folder is there and writable", file=file) from error
