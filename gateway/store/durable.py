"""Files that are trusted later: whole or not there at all, whenever power fails, and there once a call has returned.

Temporary name in the same folder, fsync, rename, fsync of the folder. A kill may leave a temporary name behind, never
anything else: `sweep` takes those away.
"""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
"""How every temporary name begins; no name in the store does otherwise."""
FILE_MODE = 0o640
FOLDER_MODE = 0o750
"""The daemon reads through its group; nobody else does."""


def write_file(file: Path, content: bytes, mode: int = FILE_MODE) -> None:
    """Make `file` hold `content`, or leave it as it was. Raises OSError; then nothing is left behind."""
    staged = temporary(file.parent)
    try:
        _write_new(staged, content, mode)
        staged.replace(file)
    except OSError:
        staged.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def make_folder(folder: Path, mode: int = FOLDER_MODE) -> None:
    """Create `folder`, and what it lies in, where they are not there yet. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)  # mkdir's mode is subject to the umask
    sync_folder(folder)
    sync_folder(folder.parent)


def rename(source: Path, target: Path) -> None:
    """Give `source`, which is on the disk already, another name in the same folder. Raises OSError."""
    source.replace(target)
    sync_folder(target.parent)


def remove_file(file: Path) -> bool:
    """Take `file` away; False where there was none. Raises OSError."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    sync_folder(file.parent)
    return True


def remove_tree(folder: Path) -> bool:
    """Take `folder` away with all in it: its name first, so that half of it never bears it. Raises OSError."""
    staged = temporary(folder.parent)
    try:
        folder.rename(staged)
    except FileNotFoundError:
        return False
    sync_folder(folder.parent)
    shutil.rmtree(staged)
    return True


def sweep(folder: Path) -> int:
    """Take away what killed writers left in `folder`; how many. For its only writer. Raises OSError."""
    left = [entry for entry in folder.iterdir() if entry.name.startswith(TEMPORARY_PREFIX)]
    for entry in left:
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return len(left)


def temporary(folder: Path) -> Path:
    """A new name in `folder` that `sweep` knows."""
    return folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"


def sync_folder(folder: Path) -> None:
    """Wait until the names in `folder` are on the disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_new(file: Path, content: bytes, mode: int) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb", buffering=0):
        _write_all(descriptor, content)
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
