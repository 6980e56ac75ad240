"""Durable files: written whole or not at all, and synced to disk when the call returns. Locks between processes."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.domain.python310 import sha256_of
from gateway.common.files.durable import make_folder, replacing
from gateway.common.files.locks import try_lock

CHUNK_BYTES = 1_048_576
PART_SUFFIX = ".part"
FILE_MODE = 0o644
"""Mode of what is published."""
LOCK_FILE = ".lock"
LOCK_POLL_S = 0.05
"""Pause between two attempts to lock a folder, in seconds."""


def write_durably(path: Path, content: bytes, *, mode: int = FILE_MODE) -> None:
    """Replace a file by rename, with fsync of file and folder. Raise OSError; then the old content remains."""
    with _replacing(path, mode) as file:
        file.write(content)


def copy_durably(source: Path, path: Path, sha256: str, advance: Callable[[int], object] = lambda _: None) -> None:
    """Copy a file with a known digest. `advance` gets the size of each piece.

    Raise OSError, or ConfigurationError for other content; then nothing is written.
    """
    digest = hashlib.sha256()
    with source.open("rb") as reading, _replacing(path, FILE_MODE) as file:
        while chunk := reading.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
            advance(len(chunk))
        if digest.hexdigest() != sha256:
            problem = f"has the sha256 digest {digest.hexdigest()}, {sha256} is expected; it changed meanwhile"
            raise ConfigurationError(problem, file=str(source))


def read_bounded(path: Path, limit_bytes: int) -> bytes:
    """Return a file's content. Raise ConfigurationError if it is unreadable or larger than `limit_bytes`."""
    try:
        with path.open("rb") as file:
            content = file.read(limit_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot be read: {error.strerror or error}", file=str(path)) from error
    if len(content) > limit_bytes:
        raise ConfigurationError(f"is larger than the {limit_bytes} bytes that are read", file=str(path))
    return content


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content, as hex. Raise OSError."""
    with path.open("rb") as file:
        return sha256_of(file)


@contextmanager
def _replacing(path: Path, mode: int) -> Iterator[BinaryIO]:
    """Yield the new content of `path`, at a fixed name that the next attempt overwrites."""
    make_folder(path.parent, mode=None)
    with replacing(path, mode, path.with_name(f".{path.name}{PART_SUFFIX}")) as file:
        yield file


@contextmanager
def locked(folder: Path, wait_s: float) -> Iterator[None]:
    """Hold a folder's lock. Raise UnreachableError if another process keeps it for longer than `wait_s`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK_FILE).open("w") as file:
        end_s = time.monotonic() + wait_s
        while not try_lock(file):
            if time.monotonic() >= end_s:
                problem = "another edge-fleet is working in this folder; try again when it is done"
                raise UnreachableError(problem, file=str(folder))
            time.sleep(LOCK_POLL_S)
        yield
