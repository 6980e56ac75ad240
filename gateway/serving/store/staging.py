"""Folder of a model's version that appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.files.durable import TEMPORARY_PREFIX, make_folder, sync_folder, temporary
from gateway.common.files.locks import folder_in_use, is_abandoned
from gateway.common.store.plain import open_plain

ABANDONED_AFTER_S = 60
"""Age of a staging folder without a lock from which it is what a killed process left; a new one is locked at once."""


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder, which becomes `target` at the end of the block; if the block fails, nothing is left.

    It is in the parent of `target`, whose missing parents are created, and it is locked: what killed processes left
    there has no lock, and is removed. Raises ConfigurationError if `target` exists, OSError.
    """
    check_absent(target)
    missing = [folder for folder in (target.parent, target.parent.parent) if not folder.exists()]
    make_folder(target.parent, mode=None)
    remove_abandoned(target.parent)
    staged = temporary(target.parent)
    try:
        staged.mkdir()
        with folder_in_use(staged):
            yield staged
            check_absent(target)
            for folder in (staged, *(entry for entry in staged.rglob("*") if entry.is_dir())):
                sync_folder(folder)
            staged.rename(target)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        for folder in missing:
            with suppress(OSError):  # another command may use it now
                folder.rmdir()
        raise
    sync_folder(target.parent)


def remove_abandoned(folder: Path) -> None:
    """Remove the staging folders that killed processes left in `folder`. Raises OSError."""
    for entry in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if is_abandoned(entry, ABANDONED_AFTER_S):
            shutil.rmtree(entry, ignore_errors=True)


def check_absent(target: Path) -> None:
    """Check that nothing has the name of `target`. Raises ConfigurationError."""
    if os.path.lexists(target):
        raise ConfigurationError("exists; name another version with --version, or remove it", file=str(target))


def copy_file(source: Path, target: Path) -> None:
    """Copy a plain file and wait until it is on the disk. Raises OSError with the name of the file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open_plain(source) as content, target.open("xb") as copy:
            shutil.copyfileobj(content, copy)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError as error:
        error.filename = error.filename or str(target)  # a failed write(2) does not name the file
        raise


def write_text(text: str, target: Path) -> None:
    """Write a text and wait until it is on the disk. Raises OSError with the name of the file."""
    try:
        with target.open("xb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(target)
        raise
