"""Port for what is pulled, and its implementation for one file on a web server or in a bucket."""

from __future__ import annotations

from typing import Protocol

from gateway.common.transfer.source import Receiver
from gateway.common.transfer.web import WebSource
from gateway.workshop.pull.manifest import ReleasePart
from gateway.workshop.pull.reference import archive_suffix


class ReleaseSource(Protocol):
    """Place from which the parts of one release come. Every method raises FetchError."""

    def parts(self) -> tuple[ReleasePart, ...]:
        """Return the parts. Raise ConfigurationError if they are no release."""

    def etag(self, part: ReleasePart) -> str:
        """Return the ETag that identifies the content of a part now; "" if its digest does."""

    def copy(self, part: ReleasePart, receiver: Receiver) -> None:
        """Append the missing bytes of a part. FetchError has status 412 if the source has changed since `parts`."""


class FileReleaseSource:
    """One file at `path` of `web`, with the pinned `digest`."""

    def __init__(self, web: WebSource, path: str, file: str, digest: str) -> None:
        self._web, self._path, self._file, self._digest = web, path, file, digest
        self._etag = ""

    def parts(self) -> tuple[ReleasePart, ...]:
        """Return the file, with the size that the server states now."""
        facts = self._web.measure(self._path)
        self._etag = facts.etag
        archive = archive_suffix(self._file)
        return (ReleasePart(self._digest, facts.size_bytes, "" if archive else self._file, archive),)

    def etag(self, _part: ReleasePart) -> str:
        """Return the ETag of the last `parts`."""
        return self._etag

    def copy(self, part: ReleasePart, receiver: Receiver) -> None:
        """Append the missing bytes."""
        self._web.copy(self._path, receiver, part.size_bytes, etag=self._etag)
