"""Blobs in a local folder: written whole or not at all, and durable when `put` returns."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fleet.controller.blobs.safe_path import open_beneath
from fleet.controller.blobs.settings import BlobSettings
from fleet.controller.blobs.store import absent, checked_digest, pieces
from fleet.disk import CHUNK_BYTES, FILE_MODE
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.files.durable import replacing

INCOMING = ".incoming-"
"""Prefix of incomplete files. Names with a leading dot are never served."""


class DiskBlobs:
    """Store in `folder`/DIGEST. In the publisher's folder that is `public/blobs/sha256`."""

    def __init__(self, folder: Path, settings: BlobSettings | None = None) -> None:
        """Create the folder and remove leftovers. Raise OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.resolve()
        for part in self._folder.glob(f"{INCOMING}*"):  # a younger one may belong to a replica that still writes it
            with suppress(FileNotFoundError):  # another replica removed it, too
                if time.time() - part.stat().st_mtime > (settings or BlobSettings()).leftover_age_s:
                    part.unlink()

    def put(self, digest: str, stream: BinaryIO, size_bytes: int) -> None:
        """Store a blob. Several callers may store the same one. Disk space is reserved before the first byte."""
        place = self._folder / checked_digest(digest)
        if self.stat(digest) == size_bytes:
            return
        part = self._folder / f"{INCOMING}{secrets.token_hex(8)}"
        with self._request_errors(), replacing(place, FILE_MODE, part) as file:
            if size_bytes:
                os.posix_fallocate(file.fileno(), 0, size_bytes)
            for piece in pieces(stream, digest, size_bytes, CHUNK_BYTES):
                file.write(piece)

    def stat(self, digest: str) -> int | None:
        """Return the file's length. Its content was checked when it was stored."""
        try:
            with self.open(digest) as file:
                return os.fstat(file.fileno()).st_size
        except RequestError as error:
            if error.fault is Fault.NOT_FOUND:
                return None
            raise

    def open(self, digest: str) -> BinaryIO:
        """Open the file."""
        with self._request_errors():
            file = open_beneath(self._folder, (checked_digest(digest),))
        if file is None:
            raise absent(digest)
        return file

    def url(self, digest: str, method: str) -> str:
        """Return "": this controller serves the file itself."""
        return ""

    @contextmanager
    def _request_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"the disk of {self._folder} fails: {error.strerror or error}"
            remedy = "free space on it or repair it, then try again"
            raise RequestError(Fault.UNAVAILABLE, f"{problem}; {remedy}") from error
