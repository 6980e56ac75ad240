"""Transfer of blobs from a source into the store.

Space is reserved before the first byte. A blob gets its name only if its digest is right.
"""

from __future__ import annotations

from pathlib import Path

from gateway.common.logs import get_logger
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import DamagedError
from gateway.common.store.fetching import Progress, download_blob
from gateway.common.transfer.source import FetchError, RepositorySource
from gateway.device.agent import events


def blob_path(digest: str) -> str:
    """Return the path at which a repository publishes a blob."""
    return f"blobs/sha256/{digest}"


def fetch_blob(
    source: RepositorySource, blobs: LocalBlobs, digest: str, size_bytes: int, progress: Progress | None = None
) -> Path:
    """Return the path of the blob in the store; fetch it if it is absent or damaged. A partial download is continued.

    Raise FetchError (the received bytes stay, unless the digest is wrong), SpaceError before the first byte if there is
    no space, StoreError.
    """
    if blobs.has(digest, size_bytes):
        if blobs.verify(digest):
            return blobs.path(digest)
        get_logger("fetch").warning(events.DAMAGED_BLOB_DISCARDED, sha256=digest)
        blobs.discard(digest)
    try:
        path = download_blob(
            blobs, digest, size_bytes, lambda part: source.copy(blob_path(digest), part, size_bytes), progress
        )
    except DamagedError as error:
        raise FetchError(f"{blob_path(digest)} of {source.name} cannot be kept: {error}", final=True) from error
    if path is None:
        problem = "is not what was signed: its digest differs; publish it again, or use another mirror"
        raise FetchError(f"{blob_path(digest)} of {source.name} {problem}", final=True)
    return path
