"""Download of a blob into the store: space is reserved first, it can be resumed, and it gets its name at the end."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from gateway.common.files import durable
from gateway.common.store.errors import DamagedError, StoreError, store_errors
from gateway.common.store.settings import StoreSettings

_KEEP_SIZE = 1
"""FALLOC_FL_KEEP_SIZE (linux/falloc.h): the file's size remains the number of received bytes."""
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Download:
    """Download, made by `LocalBlobs.writer`. It resumes after a power failure or a kill; the digest decides."""

    def __init__(self, part: Path, final: Path, digest: str, size_bytes: int, settings: StoreSettings) -> None:
        self._part, self._final, self._digest = part, final, digest
        self._settings = settings
        self.size_bytes = size_bytes
        self.offset = 0
        """Number of received bytes: the position of the next chunk."""
        self._synced = 0
        self._hash = hashlib.sha256()
        with store_errors(part):
            self._descriptor = _open_part(part)
        try:
            self._resume()
        except (StoreError, OSError):
            self.close()
            if self.offset == 0:  # one that has bytes keeps them
                with contextlib.suppress(OSError):  # the error to report is that of the full disk
                    durable.remove_file(self._part)
            raise

    def __enter__(self) -> Download:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def append(self, chunk: bytes) -> None:
        """Append the next bytes. Raises DamagedError for more than announced, SpaceError, StoreError."""
        if self.offset + len(chunk) > self.size_bytes:
            raise DamagedError(f"more arrives than the {self.size_bytes} bytes that were signed", file=self._part)
        with store_errors(self._part):
            rest = memoryview(chunk)
            while rest:
                count = os.write(self._descriptor, rest)
                self._hash.update(rest[:count])
                self.offset += count
                rest = rest[count:]
            if self.offset - self._synced >= self._settings.sync_every_bytes:
                os.fdatasync(self._descriptor)
                self._synced = self.offset

    def restart(self) -> None:
        """Begin again at offset 0, for a sender that cannot resume. Raises SpaceError, StoreError."""
        with store_errors(self._part):
            os.ftruncate(self._descriptor, 0)
            os.lseek(self._descriptor, 0, os.SEEK_SET)
            self.offset = self._synced = 0
            self._hash = hashlib.sha256()
            _set_aside(self._descriptor, self.size_bytes)

    def finish(self) -> Path:
        """Complete the blob, and return its final path. Raises StoreError if bytes are missing; the part stays.

        Raises DamagedError if the digest differs; then the part is removed and must be downloaded again.
        """
        if self.offset != self.size_bytes:
            raise StoreError(
                f"ends after {self.offset} of {self.size_bytes} bytes; continue the download", file=self._part
            )
        if self._hash.hexdigest() != self._digest:
            self.discard()
            raise DamagedError(f"what was sent has the digest {self._hash.hexdigest()}; it is dropped", file=self._part)
        with store_errors(self._part):
            os.fsync(self._descriptor)
            durable.rename(self._part, self._final)
        self.close()
        return self._final

    def discard(self) -> None:
        """Remove the part. Raises StoreError."""
        self.close()
        with store_errors(self._part):
            durable.remove_file(self._part)

    def close(self) -> None:
        """Close the file; the received bytes are kept for a later download. Calling it twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _resume(self) -> None:
        with store_errors(self._part):
            found = os.fstat(self._descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise DamagedError("is no plain file; remove it", file=self._part)
            if found.st_size > self.size_bytes:
                os.ftruncate(self._descriptor, 0)
            while chunk := os.read(self._descriptor, self._settings.read_chunk_bytes):
                self._hash.update(chunk)
                self.offset += len(chunk)
            self._synced = self.offset
            _set_aside(self._descriptor, self.size_bytes)


def _open_part(part: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(part, flags, 0o600)
    os.fchmod(descriptor, durable.FILE_MODE)
    return descriptor


def _set_aside(descriptor: int, size_bytes: int) -> None:
    """Reserve space for the whole file. If the file system cannot, only the check of free space protects."""
    if size_bytes == 0 or _fallocate()(descriptor, _KEEP_SIZE, 0, size_bytes) == 0:
        return
    code = ctypes.get_errno()
    if code not in _UNSUPPORTED:
        raise OSError(code, os.strerror(code))


@cache
def _fallocate() -> Any:
    """Return fallocate(2). The standard library only has posix_fallocate, which makes the file look complete."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "fallocate64", None) or library.fallocate  # 64-bit offsets on 32-bit boards, too
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function
