"""Atomic and durable files: after a power failure they are complete or absent, and complete once a call has returned.

Each file is written under a temporary name in the same folder, then fsync, rename, and fsync of the folder. A kill can
only leave a temporary name: `sweep` removes those.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of temporary names; no other name in the store begins with it."""
FILE_MODE = 0o640
FOLDER_MODE = 0o750
"""Mode of folders: only the owner writes, and the daemon reads through its group."""


def write_file(file: Path, content: bytes, mode: int = FILE_MODE) -> None:
    """Write `content` to `file` atomically. Raises OSError; then `file` is unchanged, and no temporary file is left."""
    with replacing(file, mode, temporary(file.parent)) as staged:
        staged.write(content)


@contextmanager
def replacing(file: Path, mode: int, staged: Path) -> Iterator[BinaryIO]:
    """Yield the new content of `file`: it is at `staged`, in the same folder, until it is complete and on the disk.

    Raises OSError, and what the caller raises; then `file` is unchanged, and `staged` is removed.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(staged, flags, 0o600), "wb") as content:
            yield content
            content.flush()
            os.fchmod(content.fileno(), mode)
            os.fsync(content.fileno())  # before the rename: a name may reach the disk before the content it leads to
        staged.replace(file)
    except BaseException as error:
        staged.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(file)  # a failed write(2) does not name the file
        raise
    sync_folder(file.parent)  # fsync of a file does not write the entry in its folder (fsync(2))


def make_folder(folder: Path, mode: int | None = FOLDER_MODE) -> None:
    """Create `folder` and its parents if they do not exist. `mode` None: what the umask leaves. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    folder.mkdir(exist_ok=True)
    if mode is not None:
        folder.chmod(mode)  # mkdir's mode is subject to the umask
    sync_folder(folder)
    sync_folder(folder.parent)


def rename(source: Path, target: Path) -> None:
    """Rename `source`, which is durable already, within its folder. Raises OSError."""
    source.replace(target)
    sync_folder(target.parent)


def remove_file(file: Path) -> bool:
    """Remove `file`. Return False if there was none. Raises OSError."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    sync_folder(file.parent)
    return True


def remove_tree(folder: Path) -> bool:
    """Remove `folder` with its content; it is renamed first, so that a partial folder never has its name.

    Raises OSError.
    """
    staged = temporary(folder.parent)
    try:
        folder.rename(staged)
    except FileNotFoundError:
        return False
    sync_folder(folder.parent)
    shutil.rmtree(staged)
    return True


def sweep(folder: Path) -> int:
    """Remove temporary entries of killed writers in `folder`; return their number. Raises OSError.

    Only the single writer of the folder may call it.
    """
    left = [entry for entry in folder.iterdir() if entry.name.startswith(TEMPORARY_PREFIX)]
    for entry in left:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return len(left)


def temporary(folder: Path) -> Path:
    """Return a new name in `folder` that `sweep` recognises."""
    return folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
