"""Locks of stores with one writer: flock(2) on a file that names the holder. The kernel ends it with the process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from gateway.common.domain.errors import UnreachableError

COMMAND_LIMIT_BYTES = 200
"""Beginning of the holder's command line that is shown."""


def try_lock(file: IO[Any] | int) -> bool:
    """Return whether the file is locked from now on, until it is closed; False if another one holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def folder_in_use(folder: Path) -> Iterator[None]:
    """Hold a shared lock on a folder. Where the file system has none, the folder counts as in use all the same."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def is_abandoned(folder: Path, after_s: float) -> bool:
    """Return whether no process uses a folder: it has no lock, and is older than the time to lock a new one."""
    try:
        if time.time() - folder.lstat().st_mtime < after_s:
            return False
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            return try_lock(descriptor)  # a network file system refuses it for reading
        finally:
            os.close(descriptor)
    except OSError:
        return False


@contextmanager
def sole_writer(file: Path, program: str, remedy: str) -> Iterator[None]:
    """Hold the lock of the folder of `file`.

    Raises UnreachableError that names the process that holds it, and OSError where the file system has no locks.
    """
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not try_lock(descriptor):
            holder = os.pread(descriptor, 16, 0).decode(errors="replace").strip()
            problem = f"another {program} uses this folder: process {holder}{_command(holder)}; {remedy}"
            raise UnreachableError(problem, file=str(file.parent))
        with suppress(OSError):  # a full disk; the lock holds without the name
            os.pwrite(descriptor, f"{os.getpid():<15}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _command(pid: str) -> str:
    """Return a process's command line in brackets; "" if it is another user's, or in another container."""
    try:
        line = Path("/proc", pid, "cmdline").read_bytes()[:COMMAND_LIMIT_BYTES]
    except OSError:
        return ""
    words = line.decode(errors="replace").split("\0")
    return f" ({' '.join(words).strip()})"
