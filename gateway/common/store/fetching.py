"""Download of one blob into the store, whatever sends it. A blob gets its name only if its digest is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gateway.common.store.blobs import Download, LocalBlobs
from gateway.common.store.errors import DamagedError
from gateway.common.transfer.source import Receiver

Progress = Callable[[int, int], None]
"""Callback with the number of bytes that are here and the total."""
Copy = Callable[[Receiver], None]
"""Function that appends the missing bytes of a file to its receiver."""


def download_blob(
    blobs: LocalBlobs, digest: str, size_bytes: int, copy: Copy, progress: Progress | None = None
) -> Path | None:
    """Return the path of the blob; None if what came has another digest: then its bytes are removed.

    A partial download is continued. If the complete file then has a wrong digest, the part was damaged (by this disk,
    or by another source), and the file is copied once more from its first byte. Raise what `copy` raises; the received
    bytes stay. Raise SpaceError before the first byte if there is no space, StoreError.
    """
    resumed, path = _download(blobs, digest, size_bytes, copy, progress)
    if path is None and resumed:
        _, path = _download(blobs, digest, size_bytes, copy, progress)
    return path


def _download(
    blobs: LocalBlobs, digest: str, size_bytes: int, copy: Copy, progress: Progress | None
) -> tuple[int, Path | None]:
    """Return the bytes that were there before, and the path; None if the digest was wrong."""
    with blobs.writer(digest, size_bytes) as part:
        resumed = part.offset
        copy(_Told(part, size_bytes, progress) if progress else part)
        try:
            return resumed, part.finish()
        except DamagedError:
            return resumed, None


class _Told:
    """Part that reports its progress."""

    def __init__(self, part: Download, size_bytes: int, progress: Progress) -> None:
        self._part, self._size_bytes, self._progress = part, size_bytes, progress

    @property
    def offset(self) -> int:
        return self._part.offset

    def append(self, chunk: bytes) -> None:
        self._part.append(chunk)
        self._progress(self._part.offset, self._size_bytes)
