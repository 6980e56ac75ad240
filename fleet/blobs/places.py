"""Where files are found that devices fetch: the publisher's folder, a store of blobs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Protocol

from fleet.blobs.answer import Content
from fleet.blobs.beneath import open_beneath
from fleet.blobs.store import Blobs
from gateway.domain.manifest_toml import DIGEST_PATTERN

IMMUTABLE = "public, max-age=31536000, immutable"
PUBLIC = ("metadata", "targets")
"""Of the publisher's folder; blobs have a place of their own, assignments are the director's."""
_NUMBERED = re.compile(r"[0-9]+\..+")


@dataclass(frozen=True, slots=True)
class Found:
    """`file` is to be closed by who asked; or `url` says where it is."""

    content: Content | None = None
    file: BinaryIO | None = None
    url: str = ""
    etag: str = ""


class Place(Protocol):
    """Somewhere to look."""

    def find(self, path: str, method: str) -> Found | None:
        """What lies at `path` ("metadata/timestamp.json"); None where nothing does. Blocks.

        Raises RequestError, OSError.
        """


class PublicFolder:
    """The repository as the publisher writes it, without what is hidden, linked, or in other folders than `folders`."""

    def __init__(self, folder: Path, folders: Sequence[str] = PUBLIC) -> None:
        self._folder, self._folders = folder.resolve(), frozenset(folders)

    def find(self, path: str, method: str) -> Found | None:
        """A file is replaced, never changed: inode, time of change and length tell one content from the next."""
        parts = path.split("/")
        file = open_beneath(self._folder, parts) if parts[0] in self._folders and len(parts) > 1 else None
        if file is None:
            return None
        status = os.fstat(file.fileno())
        modified = datetime.fromtimestamp(int(status.st_mtime), UTC)
        etag = f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"'
        kind = "application/json" if path.endswith(".json") else "application/octet-stream"
        return Found(Content(etag, status.st_size, modified, kind, _caching(parts)), file)


class BlobPlace:
    """`sha256/DIGEST` of a store."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs

    def find(self, path: str, method: str) -> Found | None:
        """Its digest is its tag: it never changes."""
        kind, _, digest = path.partition("/")
        if kind != "sha256" or not DIGEST_PATTERN.fullmatch(digest):
            return None
        etag = f'"{digest}"'
        if url := self._blobs.url(digest, method):
            return Found(url=url, etag=etag)
        file = self._blobs.open(digest)
        return Found(Content(etag, os.fstat(file.fileno()).st_size, cache_control=IMMUTABLE), file)


def _caching(parts: Sequence[str]) -> str:
    """Targets bear their digest, metadata but the timestamp their version (consistent snapshots: TUF, 6.2)."""
    return IMMUTABLE if parts[0] == "targets" or _NUMBERED.fullmatch(parts[-1]) else "no-cache"
