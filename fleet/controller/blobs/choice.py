"""Choice of the blob store by the settings, and upload of the publisher's files to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fleet.controller.blobs.disk import DiskBlobs
from fleet.controller.blobs.s3 import S3Blobs
from fleet.controller.blobs.settings import BlobSettings
from fleet.controller.blobs.store import BlobStore


def open_blobs(folder: Path, settings: BlobSettings) -> BlobStore:
    """Return the bucket of `[blobs.s3]`, or else `folder`. Raise ConfigurationError, OSError."""
    return S3Blobs(settings.s3) if settings.s3.bucket else DiskBlobs(folder, settings)


def upload(blobs: BlobStore, files: Mapping[str, Path], advance: Callable[[int], object]) -> int:
    """Store the files, by digest, that the store lacks, and return how many. Idempotent.

    Upload before the metadata name the files: a device must never learn of a file that is not there. Raise
    RequestError, OSError.
    """
    uploaded = 0
    for digest, file in files.items():
        size_bytes = file.stat().st_size
        if blobs.stat(digest) != size_bytes:
            with file.open("rb") as stream:
                blobs.put(digest, stream, size_bytes)
            uploaded += 1
        advance(size_bytes)
    return uploaded
