"""Transfer of blobs from a source into the store.

Space is reserved before the first byte. A blob gets its name only if its digest is right.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from gateway.agent import events
from gateway.observe.logs import get_logger
from gateway.store.errors import DamagedError
from gateway.transfer.source import FetchError, RepositorySource

Progress = Callable[[int, int], None]
"""Callback with the number of bytes that are here and the total."""


class PartialBlob(Protocol):
    """Blob whose download is under way (`gateway.store.download.Download`)."""

    @property
    def offset(self) -> int: ...

    def append(self, chunk: bytes) -> None: ...

    def finish(self) -> Path: ...


class BlobWriter(Protocol):
    """Methods of the store that are used here (`gateway.store.blobs.LocalBlobs`)."""

    def has(self, digest: str, size_bytes: int) -> bool: ...

    def path(self, digest: str) -> Path: ...

    def verify(self, digest: str) -> bool: ...

    def discard(self, digest: str) -> bool: ...

    def writer(self, digest: str, size_bytes: int) -> AbstractContextManager[PartialBlob]: ...


def blob_path(digest: str) -> str:
    """Return the path at which a repository publishes a blob."""
    return f"blobs/sha256/{digest}"


def fetch_blob(
    source: RepositorySource, blobs: BlobWriter, digest: str, size_bytes: int, progress: Progress | None = None
) -> Path:
    """Return the path of the blob in the store; fetch it if it is absent or damaged.

    A partial download is continued. If the complete file then has a wrong digest, the part was damaged (by this disk,
    or by another mirror), and the file is fetched once more from its first byte.

    Raise FetchError (the received bytes stay, unless the digest is wrong), SpaceError before the first byte if there is
    no space, StoreError.
    """
    if blobs.has(digest, size_bytes):
        if blobs.verify(digest):
            return blobs.path(digest)
        get_logger("fetch").warning(events.DAMAGED_BLOB_DISCARDED, sha256=digest)
        blobs.discard(digest)
    try:
        resumed, path = _download(source, blobs, digest, size_bytes, progress)
        if path is None and resumed:
            _, path = _download(source, blobs, digest, size_bytes, progress)
    except DamagedError as error:
        raise FetchError(f"{blob_path(digest)} of {source.name} cannot be kept: {error}", final=True) from error
    if path is None:
        problem = "is not what was signed: its digest differs; publish it again, or use another mirror"
        raise FetchError(f"{blob_path(digest)} of {source.name} {problem}", final=True)
    return path


def _download(
    source: RepositorySource, blobs: BlobWriter, digest: str, size_bytes: int, progress: Progress | None
) -> tuple[int, Path | None]:
    """Return the bytes that were there before, and the path; None if the digest was wrong (the bytes are removed)."""
    with blobs.writer(digest, size_bytes) as part:
        resumed = part.offset
        source.copy(blob_path(digest), _Told(part, size_bytes, progress) if progress else part, size_bytes)
        try:
            return resumed, part.finish()
        except DamagedError:
            return resumed, None


class _Told:
    """Part that reports its progress."""

    def __init__(self, part: PartialBlob, size_bytes: int, progress: Progress) -> None:
        self._part, self._size_bytes, self._progress = part, size_bytes, progress

    @property
    def offset(self) -> int:
        return self._part.offset

    def append(self, chunk: bytes) -> None:
        self._part.append(chunk)
        self._progress(self._part.offset, self._size_bytes)
