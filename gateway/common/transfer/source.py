"""Port for signed files: the agent decides, a network or a folder delivers.

Data from a source is not trusted: callers verify it. A source only guarantees bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

NOT_FOUND = 404


class FetchError(Exception):
    """A fetch failed. The message names the file, the source and the reason.

    `status`: HTTP status of the final answer (a folder uses 404 for missing files; 0: no answer). `final`: a retry soon
    would fail again. `retry_after_s`: pause that the server asked for. `challenge`: its WWW-Authenticate header.
    `kind`: `type` of the problem document (RFC 9457) that it answered, "" without one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        final: bool = False,
        retry_after_s: float = 0.0,
        challenge: str = "",
        kind: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.final = final
        self.retry_after_s = retry_after_s
        self.challenge = challenge
        self.kind = kind


@dataclass(frozen=True, slots=True)
class SourceDocument:
    """Answer of a source. `content` is None if the caller's copy, named by `etag`, is current."""

    content: bytes | None
    etag: str = ""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Size of a file at a source, and its ETag ("": none)."""

    size_bytes: int
    etag: str = ""


class Receiver(Protocol):
    """Receiver of a file of known size, in pieces. `offset`: bytes that it already has."""

    @property
    def offset(self) -> int: ...

    def append(self, chunk: bytes) -> None:
        """Append the next bytes. An exception ends the download."""


class RepositorySource(Protocol):
    """Published repository (`metadata/`, `targets/`, `blobs/`, `assignments/`), addressed by relative paths."""

    @property
    def name(self) -> str:
        """Location, for people."""

    def read(
        self, path: str, limit_bytes: int, *, etag: str = "", query: Mapping[str, str] | None = None
    ) -> SourceDocument:
        """Return a whole file of at most `limit_bytes`. Raise FetchError.

        `etag`: of the caller's copy. `query`: parameters for servers that answer each caller differently.
        """

    def copy(self, path: str, receiver: Receiver, size_bytes: int) -> None:
        """Append to `receiver` until it has exactly `size_bytes`. Raise FetchError; received bytes stay."""
