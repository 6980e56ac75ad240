"""Files by the SHA-256 digest of their content: `<folder>/sha256/<digest>`, during a download `<digest>.part`."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.python310 import sha256_of
from gateway.common.files import durable
from gateway.common.store.errors import DamagedError, SpaceError, StoreAbsentError, StoreError, store_errors
from gateway.common.store.plain import check_digest
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
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            self._descriptor = os.open(part, flags, 0o600)
            os.fchmod(self._descriptor, durable.FILE_MODE)
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


PART_SUFFIX = ".part"
_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK_BYTES = 512
"""Unit of st_blocks on every file system (stat(2))."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of `LocalBlobs.collect`: `freed_bytes` of disk, `removed` files, and `strangers` (unknown names, kept)."""

    removed: int
    freed_bytes: int
    strangers: int


class LocalBlobs:
    """Content-addressed store. Readers need no write permission. The only writer process calls `prepare` first."""

    def __init__(self, folder: Path, settings: StoreSettings | None = None) -> None:
        self._folder = folder / "sha256"
        self._settings = settings or StoreSettings()

    def prepare(self) -> None:
        """Create the folder, and remove the temporary files of killed writers. Raises StoreError."""
        with store_errors(self._folder):
            durable.make_folder(self._folder)
            durable.sweep(self._folder)

    def path(self, digest: str) -> Path:
        """Return the path of a blob, present or not. Raises ValueError if `digest` is no digest."""
        return self._folder / check_digest(digest)

    def has(self, digest: str, size_bytes: int) -> bool:
        """Return True if a file of that name and size exists; its content is not read (`verify` does that)."""
        try:
            found = self.path(digest).lstat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and found.st_size == size_bytes

    def verify(self, digest: str) -> bool:
        """Return True if the blob exists, can be read, and its content matches its name."""
        try:
            with os.fdopen(self._open(digest), "rb", buffering=0) as file:
                return sha256_of(file) == digest
        except (OSError, DamagedError):
            return False

    def read(self, digest: str, limit_bytes: int) -> bytes:
        """Return a blob's content, verified.

        Raises AbsentError. Raises DamagedError for other content, or for more than `limit_bytes`.
        """
        path = self.path(digest)
        try:
            with store_errors(path), os.fdopen(self._open(digest), "rb") as file:
                content = file.read(limit_bytes + 1)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise StoreAbsentError("is not in the store; it has to be fetched", file=path) from None
            raise
        if len(content) > limit_bytes:
            raise DamagedError(f"has more than the {limit_bytes} bytes that are read", file=path)
        if hashlib.sha256(content).hexdigest() != digest:
            raise DamagedError("its content does not match its digest; remove it, it is fetched again", file=path)
        return content

    def put(self, content: bytes) -> str:
        """Store `content`, and return its digest. Raises SpaceError, StoreError."""
        digest = hashlib.sha256(content).hexdigest()
        if not self.verify(digest):
            self._ask_for_room(self.path(digest), len(content))
            with store_errors(self.path(digest)):
                durable.write_file(self.path(digest), content)
        return digest

    def writer(self, digest: str, size_bytes: int) -> Download:
        """Begin or resume a download, with space for all of it reserved. Raises SpaceError, StoreError.

        Returns a context manager. Leaving it early keeps the received bytes for a later call.
        """
        part = self.path(digest).with_name(digest + PART_SUFFIX)
        self._ask_for_room(part, size_bytes - _disk_bytes(part))
        return Download(part, self.path(digest), digest, size_bytes, self._settings)

    def discard(self, digest: str) -> bool:
        """Remove a blob, such as a damaged one. Return False if there is none. Raises StoreError."""
        with store_errors(self.path(digest)):
            return durable.remove_file(self.path(digest))

    def usage_bytes(self) -> int:
        """Return the disk space of blobs and parts, including the space reserved for downloads. Raises StoreError."""
        with store_errors(self._folder):
            return sum(_disk_bytes(path) for path, _, _ in self._entries())

    def collect(self, referenced: AbstractSet[str], keep_parts: AbstractSet[str] = frozenset()) -> Collected:
        """Remove blobs that are not `referenced`, and parts that are not in `keep_parts`. Raises StoreError."""
        freed = removed = strangers = 0
        with store_errors(self._folder):
            for path, digest, is_part in list(self._entries()):
                if not digest:
                    strangers += 1
                elif digest not in (keep_parts if is_part else referenced):
                    freed += _disk_bytes(path) if path.lstat().st_nlink == 1 else 0
                    path.unlink()
                    removed += 1
            if removed:
                durable.sync_folder(self._folder)
        return Collected(removed, freed, strangers)

    def _entries(self) -> Iterator[tuple[Path, str, bool]]:
        """Yield path, digest and "is a part" of each entry; the digest is "" for a name that is not of this store.

        A reader may find that names have disappeared, because another process writes.
        """
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            digest = path.name.removesuffix(PART_SUFFIX)
            try:
                ours = DIGEST_PATTERN.fullmatch(digest) and stat.S_ISREG(path.lstat().st_mode)
            except FileNotFoundError:
                continue
            yield path, digest if ours else "", digest != path.name

    def _ask_for_room(self, file: Path, wanted_bytes: int) -> None:
        """Raise SpaceError if the quota or the space reserved for others on this disk forbids `wanted_bytes` more."""
        if wanted_bytes <= 0:
            return
        used, quota = self.usage_bytes(), self._settings.quota_bytes
        if used + wanted_bytes > quota:
            problem = f"{wanted_bytes} bytes more than the {used} in use exceed the quota; raise quota_bytes ({quota})"
            raise SpaceError(problem, file=file)
        with store_errors(self._folder):
            disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize - self._settings.keep_free_bytes
        if wanted_bytes > free:
            problem = f"{wanted_bytes} bytes are wanted, {max(free, 0)} may be used on this disk; free some"
            raise SpaceError(f"{problem}, or lower keep_free_bytes ({self._settings.keep_free_bytes})", file=file)

    def _open(self, digest: str) -> int:
        descriptor = os.open(self.path(digest), _OPEN)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
        raise DamagedError("is no plain file; remove it", file=self.path(digest))


def _disk_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * _BLOCK_BYTES
    except FileNotFoundError:
        return 0
