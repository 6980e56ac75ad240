"""Which store the settings name, and bringing into a bucket what the publisher's folder holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from fleet.blobs.disk import DiskBlobs
from fleet.blobs.s3 import S3Blobs
from fleet.blobs.settings import BlobSettings
from fleet.blobs.store import Blobs


def open_blobs(folder: Path, settings: BlobSettings) -> Blobs:
    """The bucket of `[blobs.s3]`, else `folder`. Raises ConfigurationError, OSError."""
    return S3Blobs(settings.s3) if settings.s3.bucket else DiskBlobs(folder, settings)


def upload(blobs: Blobs, files: Mapping[str, Path], advance: Callable[[int], object]) -> int:
    """Put the files, by digest, of which the store lacks any; how many. Do it before metadata names them: a device must
    never be told of what is not there. Safe to repeat. Raises RequestError, OSError."""
    uploaded = 0
    for digest, file in files.items():
        size_bytes = file.stat().st_size
        if blobs.stat(digest) != size_bytes:
            with file.open("rb") as stream:
                blobs.put(digest, stream, size_bytes)
            uploaded += 1
        advance(size_bytes)
    return uploaded
