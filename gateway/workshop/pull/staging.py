"""Staging folder of pulls: `.pull` in the model directory, on the same disk, where the gateway reads nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.files import durable
from gateway.common.files.locks import try_lock
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import store_errors
from gateway.workshop.pull.manifest import ReleasePart
from gateway.workshop.pull.settings import PullSettings

NAME = ".pull"
LOCK = "lock"
ETAG_SUFFIX = ".etag"
PRIVATE_MODE = 0o700
ETAG_LIMIT_BYTES = 4096


class StagingFolder:
    """Blobs that are pulled, and folders in which releases are made of them. Made by `staging`."""

    def __init__(self, folder: Path, settings: PullSettings) -> None:
        self.folder = folder
        self.blobs = LocalBlobs(folder, settings.store)

    def prepare(self) -> None:
        """Remove what killed pulls left, except downloads. Raise StoreError."""
        self.blobs.prepare()
        self.clear()

    def clear(self) -> None:
        """Remove the folders of `new_folder`. Raise StoreError."""
        with store_errors(self.folder):
            durable.sweep(self.folder)

    def new_folder(self) -> Path:
        """Return a new, empty folder. Raise StoreError."""
        made = durable.temporary(self.folder)
        with store_errors(made):
            made.mkdir()
        return made

    def begin(self, part: ReleasePart, etag: str) -> None:
        """Keep the bytes of an earlier download only if its source had the same ETag. Raise SpaceError, StoreError."""
        record = self._etag_file(part.digest)
        with store_errors(record):
            known = record.read_bytes()[:ETAG_LIMIT_BYTES].decode("utf-8", "replace") if record.is_file() else etag
        if known != etag:
            with self.blobs.writer(part.digest, part.size_bytes) as download:
                download.restart()
        with store_errors(record):
            durable.write_file(record, etag.encode()[:ETAG_LIMIT_BYTES])

    def forget(self, part: ReleasePart) -> None:
        """Remove a blob that has become part of a release. Raise StoreError."""
        self.blobs.discard(part.digest)
        with store_errors(self.folder):
            durable.remove_file(self._etag_file(part.digest))

    def _etag_file(self, digest: str) -> Path:
        return self.folder / f"{digest}{ETAG_SUFFIX}"


@contextmanager
def staging(models: Path, settings: PullSettings) -> Iterator[StagingFolder]:
    """Lend the staging folder of a model directory, to one pull at a time.

    Raise ConfigurationError while another one runs, StoreError.
    """
    folder = models / NAME
    with store_errors(folder):
        durable.make_folder(models, None)
        durable.make_folder(folder, PRIVATE_MODE)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not try_lock(descriptor):
            problem = "another pull into this folder is under way; wait for its end, or name another folder"
            raise ConfigurationError(problem, file=str(models))
        found = StagingFolder(folder, settings)
        found.prepare()
        yield found
    finally:
        os.close(descriptor)
