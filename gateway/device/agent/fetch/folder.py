"""Repository in a folder, such as a USB stick or a mounted share. Only plain files are read, never through links."""

from __future__ import annotations

import contextlib
import os
import stat
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.common.transfer.settings import FetchSettings
from gateway.common.transfer.source import NOT_FOUND, FetchError, Receiver, RepositorySource, SourceDocument

if TYPE_CHECKING:
    from gateway.common.transfer.connection import ConnectionPool

AGAIN = "it is tried again at the next poll"
LOCKED_OUT = "this device is not authenticated: enrol it again with a new token (edge-agent enrol)"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for a file. O_NONBLOCK: opening a pipe without a writer would block for ever."""


def open_source(where: str, connections: ConnectionPool) -> RepositorySource:
    """Return the source at `where`, an http(s) or file URL or a folder's path.

    Raise ConfigurationError if certificates are not usable.
    """
    parts = urllib.parse.urlsplit(where)
    if parts.scheme in {"http", "https"}:
        from gateway.common.transfer.answers import RequestRules
        from gateway.common.transfer.web import WebSource

        rules = RequestRules(again=AGAIN, remedies={401: LOCKED_OUT})
        return WebSource(where, connections=connections, rules=rules)
    folder = Path(urllib.parse.unquote(parts.path) if parts.scheme == "file" else where)
    return FolderSource(folder, connections.settings)


class FolderSource:
    """Repository in `folder`. Links to the folder itself are followed (mount points), links below it are refused."""

    def __init__(self, folder: Path, settings: FetchSettings | None = None) -> None:
        self._folder = folder
        self._settings = settings or FetchSettings()

    @property
    def name(self) -> str:
        """Path of the folder."""
        return str(self._folder)

    def read(
        self, path: str, limit_bytes: int, *, etag: str = "", query: Mapping[str, str] | None = None
    ) -> SourceDocument:
        """Return a whole file of at most `limit_bytes`. `etag` and `query` are ignored. Raise FetchError."""
        with self._opened(path) as (descriptor, size_bytes):
            if size_bytes > limit_bytes:
                raise self._unusable(path, f"it has {size_bytes} bytes, at most {limit_bytes} are read")
            content = bytearray()
            while piece := os.read(descriptor, min(self._settings.piece_bytes, limit_bytes + 1 - len(content))):
                content += piece
            if len(content) > limit_bytes:
                raise self._unusable(path, f"it grew beyond {limit_bytes} bytes while it was read")
            return SourceDocument(bytes(content))

    def copy(self, path: str, receiver: Receiver, size_bytes: int) -> None:
        """Append to `receiver` until it has exactly `size_bytes`. Raise FetchError."""
        with self._opened(path) as (descriptor, found_bytes):
            if found_bytes != size_bytes:
                raise self._unusable(path, f"it has {found_bytes} bytes where {size_bytes} were signed")
            os.lseek(descriptor, receiver.offset, os.SEEK_SET)
            while wanted := min(self._settings.piece_bytes, size_bytes - receiver.offset):
                piece = os.read(descriptor, wanted)
                if not piece:
                    raise self._unusable(path, f"it ended after {receiver.offset} of {size_bytes} bytes")
                receiver.append(piece)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, int]]:
        """Yield descriptor and size of a plain file."""
        try:
            descriptor = self._open(path.split("/"), path)
        except FileNotFoundError as error:
            raise FetchError(f"{self._folder} has no {path}", status=NOT_FOUND, final=True) from error
        except OSError as error:
            raise self._unusable(path, error.strerror or str(error)) from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise self._unusable(path, "it is no plain file")
            yield descriptor, found.st_size
        except OSError as error:  # the medium failed or was removed
            raise FetchError(f"{path} in {self._folder} could not be read: {error.strerror}") from error
        finally:
            os.close(descriptor)

    def _open(self, parts: list[str], path: str) -> int:
        if any(part in {"", ".", ".."} or "\0" in part for part in parts):
            raise self._unusable(path, "it is no path inside a repository")
        with contextlib.ExitStack() as opened:
            at = os.open(self._folder, _FOLDER & ~os.O_NOFOLLOW)
            opened.callback(os.close, at)
            for part in parts[:-1]:
                at = os.open(part, _FOLDER, dir_fd=at)
                opened.callback(os.close, at)
            return os.open(parts[-1], _FILE, dir_fd=at)

    def _unusable(self, path: str, problem: str) -> FetchError:
        message = (
            f"{path[:300]!r} in {self._folder} cannot be used: {problem}; copy the repository again, as plain files"
        )
        return FetchError(message, final=True)
