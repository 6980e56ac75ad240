"""Sources of the files that devices download: the publisher's folder and the blob store."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import BinaryIO, Protocol

from fleet.controller.blobs.answer import FileMetadata
from fleet.controller.blobs.safe_path import open_beneath
from fleet.controller.blobs.store import BlobStore
from gateway.common.domain.manifest_toml import DIGEST_PATTERN

IMMUTABLE = "public, max-age=31536000, immutable"
PUBLIC = ("metadata", "targets")
"""Served folders of the publisher. Blobs have a place of their own, and assignments come from the director."""
_NUMBERED = re.compile(r"[0-9]+\..+")


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """A file, which the caller must close, or the `url` of one."""

    content: FileMetadata | None = None
    file: BinaryIO | None = None
    url: str = ""
    etag: str = ""


class FileSource(Protocol):
    """Source of files."""

    def find(self, path: str, method: str) -> OpenedFile | None:
        """Return the file at `path` ("metadata/timestamp.json"), or None. Blocks.

        Raise RequestError, OSError.
        """


class PublicFolder:
    """The repository that the publisher writes. Hidden files, links and folders not in `folders` are excluded."""

    def __init__(self, folder: Path, folders: Sequence[str] = PUBLIC) -> None:
        self._folder, self._folders = folder.resolve(), frozenset(folders)

    def find(self, path: str, method: str) -> OpenedFile | None:
        """Open a file. Its tag is made of inode, change time and length, since files are replaced, never modified."""
        parts = path.split("/")
        file = open_beneath(self._folder, parts) if parts[0] in self._folders and len(parts) > 1 else None
        if file is None:
            return None
        status = os.fstat(file.fileno())
        modified = datetime.fromtimestamp(int(status.st_mtime), timezone.utc)
        etag = f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'
        kind = "application/json" if path.endswith(".json") else "application/octet-stream"
        # files with a digest or version in their name never change (TUF, 6.2)
        caching = IMMUTABLE if parts[0] == "targets" or _NUMBERED.fullmatch(parts[-1]) else "no-cache"
        return OpenedFile(FileMetadata(etag, status.st_size, modified, kind, caching), file)


class BlobPlace:
    """Files `sha256/DIGEST` of a blob store."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def find(self, path: str, method: str) -> OpenedFile | None:
        """Open a blob or return its URL. Its digest is its tag, since it never changes."""
        kind, _, digest = path.partition("/")
        if kind != "sha256" or not DIGEST_PATTERN.fullmatch(digest):
            return None
        etag = f'"{digest}"'
        if url := self._blobs.url(digest, method):
            return OpenedFile(url=url, etag=etag)
        file = self._blobs.open(digest)
        return OpenedFile(FileMetadata(etag, os.fstat(file.fileno()).st_size, cache_control=IMMUTABLE), file)
