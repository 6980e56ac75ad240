"""Bounds of archives: paths, entries and bytes. Decisions on values."""

from __future__ import annotations

import os
from pathlib import PurePosixPath
from typing import BinaryIO

from gateway.workshop.pull.settings import PullSettings

NAME_LIMIT_BYTES = 255
"""Longest name of a file (NAME_MAX of Linux's file systems)."""
TAR_BLOCK_BYTES = 512
_END, _END64_LOCATOR = b"PK\x05\x06", b"PK\x06\x07"
_END_BYTES, _LOCATOR_BYTES, _COMMENT_LIMIT_BYTES = 22, 20, 65_535


class ArchiveError(Exception):
    """An archive that is not unpacked: the problem and the remedy. Nothing of it becomes part of a release."""


class ArchiveBudget:
    """Rest of the bounds for the archives of one release."""

    def __init__(self, settings: PullSettings) -> None:
        self.settings = settings
        self._bytes, self._entries = settings.bytes_limit, settings.entries_limit

    def entry(self) -> None:
        """Count one entry. Raise ArchiveError."""
        self._entries -= 1
        if self._entries < 0:
            raise ArchiveError(
                f"holds more than {self.settings.entries_limit} files and folders; pack only the release"
            )

    def take(self, count_bytes: int) -> None:
        """Count unpacked bytes. Raise ArchiveError."""
        self._bytes -= count_bytes
        if self._bytes < 0:
            raise self.exceeded()

    def tar_bytes(self) -> int:
        """Return the most bytes of a tar with what is left: each entry has a few blocks of headers and padding."""
        return self._bytes + (self._entries + 2) * 8 * TAR_BLOCK_BYTES + self.settings.header_limit_bytes

    def exceeded(self) -> ArchiveError:
        """Return the error for more bytes than the limit."""
        limit_bytes = self.settings.bytes_limit
        return ArchiveError(f"holds more than {limit_bytes} bytes unpacked; raise it with --limit-bytes if it may")


def member_path(name: str, depth_limit: int) -> PurePosixPath:
    """Return the path of an entry below the target folder. Raise ArchiveError if it could lead elsewhere."""
    path = PurePosixPath(name)
    bad = path.is_absolute() or ".." in path.parts or "\\" in name or not name.isprintable()
    if bad or any(len(part) > NAME_LIMIT_BYTES for part in path.parts):
        raise ArchiveError(f"holds the name {name!r:.150}, which is no path inside a release; pack it again")
    if len(path.parts) > depth_limit + 1:
        raise ArchiveError(f"holds {name!r:.150}, below more than {depth_limit} folders; pack the release's folder")
    return path


def check_central_directory(file: BinaryIO, settings: PullSettings) -> None:
    """Raise ArchiveError if the directory of a zip, which zipfile reads into memory, exceeds its limit.

    Source: APPNOTE.TXT 4.3.16. A zip64 record could name another directory; a release needs none.
    """
    size_bytes = file.seek(0, os.SEEK_END)
    file.seek(max(0, size_bytes - _END_BYTES - _COMMENT_LIMIT_BYTES - _LOCATOR_BYTES))
    tail = file.read()
    file.seek(0)
    at = len(tail) - _END_BYTES
    if not (at >= 0 and tail.startswith(_END, at) and tail.endswith(b"\0\0")):
        at = tail.rfind(_END)
    if at < 0:
        raise ArchiveError("is no zip archive; check the file that was published")
    if tail[max(0, at - _LOCATOR_BYTES) : at].startswith(_END64_LOCATOR):
        raise ArchiveError("is a zip64 archive; pack a release of that size as tar.gz")
    entries, directory_bytes = int.from_bytes(tail[at + 10 : at + 12], "little"), tail[at + 12 : at + 16]
    if entries > settings.entries_limit or int.from_bytes(directory_bytes, "little") > settings.header_limit_bytes:
        raise ArchiveError(f"lists more than {settings.entries_limit} entries; pack only the release")
