"""Blobs, from a source into the store: room first, then the bytes, named only when their digest is right."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from gateway.agent.source import FetchError, Source
from gateway.observe.logs import get_logger
from gateway.store.errors import DamagedError

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are here."""


class Part(Protocol):
    """A blob on its way (`gateway.store.download.Download`)."""

    @property
    def offset(self) -> int: ...

    def append(self, chunk: bytes) -> None: ...

    def finish(self) -> Path: ...


class Store(Protocol):
    """What is asked of the store (`gateway.store.blobs.Blobs`)."""

    def has(self, digest: str, size_bytes: int) -> bool: ...

    def path(self, digest: str) -> Path: ...

    def verify(self, digest: str) -> bool: ...

    def discard(self, digest: str) -> bool: ...

    def writer(self, digest: str, size_bytes: int) -> AbstractContextManager[Part]: ...


def blob_path(digest: str) -> str:
    """Where a repository publishes a blob."""
    return f"blobs/sha256/{digest}"


def fetch_blob(source: Source, blobs: Store, digest: str, size_bytes: int, progress: Progress | None = None) -> Path:
    """The blob in the store, fetched as far as it is not there yet; what is there and damaged is fetched anew.

    A part that an earlier run left is gone on with. Where the whole then has another digest, the part was spoilt (by
    this disk, or by another mirror): it is fetched once more from the first byte.
    Raises FetchError (what came stays for the next time, unless its digest is wrong), SpaceError before the first byte
    where there is no room, StoreError.
    """
    if blobs.has(digest, size_bytes):
        if blobs.verify(digest):
            return blobs.path(digest)
        get_logger("fetch").warning("a blob is damaged and fetched again", sha256=digest)
        blobs.discard(digest)
    try:
        resumed, path = _download(source, blobs, digest, size_bytes, progress)
        if path is None and resumed:
            _, path = _download(source, blobs, digest, size_bytes, progress)
    except DamagedError as error:
        raise FetchError(f"{blob_path(digest)} of {source.name} cannot be kept: {error}", final=True) from error
    if path is None:
        problem = "is not what was signed: its digest is another; publish it anew, or use another mirror"
        raise FetchError(f"{blob_path(digest)} of {source.name} {problem}", final=True)
    return path


def _download(
    source: Source, blobs: Store, digest: str, size_bytes: int, progress: Progress | None
) -> tuple[int, Path | None]:
    """How much was there before, and the blob; None where its bytes were the wrong ones (they are dropped)."""
    with blobs.writer(digest, size_bytes) as part:
        resumed = part.offset
        source.copy(blob_path(digest), _Told(part, size_bytes, progress) if progress else part, size_bytes)
        try:
            return resumed, part.finish()
        except DamagedError:
            return resumed, None


class _Told:
    """A part that tells of its progress."""

    def __init__(self, part: Part, size_bytes: int, progress: Progress) -> None:
        self._part, self._size_bytes, self._progress = part, size_bytes, progress

    @property
    def offset(self) -> int:
        return self._part.offset

    def append(self, chunk: bytes) -> None:
        self._part.append(chunk)
        self._progress(self._part.offset, self._size_bytes)
