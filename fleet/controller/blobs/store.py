"""Interface of blob stores, their errors, and the check of content against its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest_toml import DIGEST_PATTERN


class BlobStore(Protocol):
    """Content by its SHA-256 digest (hex). Calls block. A stored blob is complete and never changes."""

    def put(self, digest: str, stream: BinaryIO, size_bytes: int) -> None:
        """Store what `stream` gives. Idempotent; the blob is durable when the call returns.

        Raise RequestError: INVALID for other content, UNAVAILABLE if it cannot be stored now. Nothing is stored then.
        """

    def stat(self, digest: str) -> int | None:
        """Return the size in bytes, or None if there is no such blob. Raise RequestError."""

    def open(self, digest: str) -> BinaryIO:
        """Open a blob for reading; the caller closes it. Raise RequestError NOT_FOUND, UNAVAILABLE."""

    def url(self, digest: str, method: str) -> str:
        """Return an external URL for GET or HEAD, or "" if this controller serves the blob. Raise RequestError."""


def checked_digest(digest: str) -> str:
    """Return `digest` if it is valid. Raise RequestError NOT_FOUND otherwise: no blob has such a name."""
    if not DIGEST_PATTERN.fullmatch(digest):
        raise RequestError(Fault.NOT_FOUND, f"{digest!r:.80} is no SHA-256 digest in lower-case hex")
    return digest


def absent(digest: str) -> RequestError:
    """Return the error for a missing blob."""
    return RequestError(Fault.NOT_FOUND, f"there is no blob {digest}; publish the release that needs it")


def pieces(stream: BinaryIO, digest: str, size_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    """Yield the content of `stream`. The last piece follows only after size and digest were verified.

    Raise RequestError INVALID.
    """
    hashed, left, held = hashlib.sha256(), size_bytes, b""
    while piece := _read(stream, digest, min(piece_bytes, left + 1)):
        left -= len(piece)
        if left < 0:
            raise RequestError(Fault.INVALID, f"the blob {digest} was announced with {size_bytes} bytes, more came")
        hashed.update(piece)
        if held:
            yield held
        held = piece
    if left:
        problem = f"the blob {digest} ended after {size_bytes - left} of {size_bytes} bytes; send it again"
        raise RequestError(Fault.INVALID, problem)
    if hashed.hexdigest() != digest:
        problem = f"what was sent has the SHA-256 digest {hashed.hexdigest()}, not {digest}; send it again"
        raise RequestError(Fault.INVALID, problem)
    yield held


def _read(stream: BinaryIO, digest: str, count_bytes: int) -> bytes:
    try:
        return stream.read(count_bytes)
    except OSError as error:  # an error of the sender, not of the store
        raise RequestError(Fault.INVALID, f"the sender of the blob {digest} broke off: {error!s:.200}") from error
