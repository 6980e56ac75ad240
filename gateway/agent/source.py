"""Where signed files come from: the seam between what the agent decides and a network or a folder.

Nothing that comes through here is trusted: who asks verifies. A source only promises bounds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

NOT_FOUND = 404


class FetchError(Exception):
    """Something could not be fetched: the message says what, from where, and why.

    `status` is the HTTP status of the answer that ended it (a folder says 404 of what it lacks; 0: there was no answer
    to go by). `final`: asking again soon would bring the same. `retry_after_s`: for how long the server asked for
    quiet.
    """

    def __init__(self, message: str, *, status: int = 0, final: bool = False, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.final = final
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Document:
    """What a source answered: `content` is None where the caller's copy, named by `etag`, is still the current one."""

    content: bytes | None
    etag: str = ""


class Receiver(Protocol):
    """Where a file of known size goes, piece by piece. `offset` is how many bytes of it are there already."""

    @property
    def offset(self) -> int: ...

    def append(self, chunk: bytes) -> None:
        """The next bytes. What this raises ends the download."""


class Source(Protocol):
    """A repository as published (`metadata/`, `targets/`, `blobs/`, `assignments/`), by paths relative to it."""

    @property
    def name(self) -> str:
        """Where it is, for people."""

    def read(self, path: str, limit_bytes: int, *, etag: str = "", query: Mapping[str, str] | None = None) -> Document:
        """A whole file of at most `limit_bytes`. Raises FetchError.

        `etag`: of a copy that the caller has. `query`: what to tell a server that answers each caller differently.
        """

    def copy(self, path: str, receiver: Receiver, size_bytes: int) -> None:
        """Bring `receiver` from its offset to exactly `size_bytes`. Raises FetchError; what came until then stays."""
