"""Files by the SHA-256 digest of their content: `<folder>/sha256/<digest>`, during a download `<digest>.part`."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.python310 import sha256_of
from gateway.common.files import durable
from gateway.common.store.download import Download
from gateway.common.store.errors import DamagedError, SpaceError, StoreAbsentError, StoreError, store_errors
from gateway.common.store.plain import check_digest
from gateway.common.store.settings import StoreSettings

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
