"""What a store of blobs is, what it refuses, and how it holds content against its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import BinaryIO, Protocol

from gateway.domain.errors import Fault, RequestError
from gateway.domain.manifest_toml import DIGEST_PATTERN


class Blobs(Protocol):
    """Content by its SHA-256 digest (hex). Calls block; what is there is whole, and never changes."""

    def put(self, digest: str, stream: BinaryIO, size_bytes: int) -> None:
        """Keep what `stream` gives; safe to repeat, and on the disk when the call returns.

        Raises RequestError: INVALID where it is other content, UNAVAILABLE where it cannot be kept now; nothing is.
        """

    def stat(self, digest: str) -> int | None:
        """How many bytes it has; None where it is not there. Raises RequestError."""

    def open(self, digest: str) -> BinaryIO:
        """To be read and closed. Raises RequestError NOT_FOUND, UNAVAILABLE."""

    def url(self, digest: str, method: str) -> str:
        """Where somebody else hands it out to GET or HEAD; "" where it is handed out here. Raises RequestError."""


def checked_digest(digest: str) -> str:
    """Raises RequestError NOT_FOUND for what is no digest: nothing has such a name."""
    if not DIGEST_PATTERN.fullmatch(digest):
        raise RequestError(Fault.NOT_FOUND, f"{digest!r:.80} is no SHA-256 digest in lower-case hex")
    return digest


def absent(digest: str) -> RequestError:
    """What was asked for is not there."""
    return RequestError(Fault.NOT_FOUND, f"there is no blob {digest}; publish the release that needs it")


def pieces(stream: BinaryIO, digest: str, size_bytes: int, piece_bytes: int) -> Iterator[bytes]:
    """What `stream` gives, the last piece only once all of it is known to be what was announced.

    Raises RequestError INVALID.
    """
    told, left, held = hashlib.sha256(), size_bytes, b""
    while piece := _read(stream, digest, min(piece_bytes, left + 1)):
        left -= len(piece)
        if left < 0:
            raise RequestError(Fault.INVALID, f"the blob {digest} was announced with {size_bytes} bytes, more came")
        told.update(piece)
        if held:
            yield held
        held = piece
    if left:
        problem = f"the blob {digest} ended after {size_bytes - left} of {size_bytes} bytes; send it again"
        raise RequestError(Fault.INVALID, problem)
    if told.hexdigest() != digest:
        problem = f"what was sent has the SHA-256 digest {told.hexdigest()}, not {digest}; send it again"
        raise RequestError(Fault.INVALID, problem)
    yield held


def _read(stream: BinaryIO, digest: str, count_bytes: int) -> bytes:
    try:
        return stream.read(count_bytes)
    except OSError as error:  # told apart from the store's own
        raise RequestError(Fault.INVALID, f"the sender of the blob {digest} broke off: {error!s:.200}") from error
