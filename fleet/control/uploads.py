"""Files of releases that arrive in pieces, each named by its SHA-256 digest.

A file lies in `uploads/` until it is complete and has its digest; then it is renamed into `staged/`, where drafts may
name it. Acknowledged bytes are on the disk. If the process is killed, they stay, and the client
continues after them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO

from fleet.audit import Deed
from fleet.control.door import Door
from fleet.control.folder_problems import folder_problems
from fleet.control.settings import DraftSettings
from fleet.database import audit
from fleet.database.engine import Database
from fleet.database.errors import AbsentError
from fleet.disk import sync_folder
from fleet.draft_rules import PrivateKeyError, check_no_private_key
from fleet.problem_types import IN_PROGRESS, PRIVATE_KEY_REFUSED, UPLOAD_MISMATCH, UPLOAD_OFFSET, UPLOADS_FULL
from fleet.problems import ProblemError
from fleet.repository import BLOBS, blob_file
from fleet.workspace import Workspace
from gateway.domain.errors import Fault, RequestError
from gateway.domain.manifest_toml import DIGEST_PATTERN

LOCK_FILE = ".lock"
TAIL_BYTES = 32
"""Bytes of the previous piece that are searched with the next one: a private key may span both."""
AGAIN_S = 1.0
"""Retry-After, in seconds, while another request writes to the same upload."""


@dataclass(frozen=True, slots=True)
class Upload:
    """State of a file. `received_bytes` are on the disk; `expires`: time of removal if incomplete, else None."""

    digest: str
    size_bytes: int
    received_bytes: int
    complete: bool
    expires: datetime | None


class Uploads:
    """Uploads of a controller: one per process, for any thread. Replicas may share the folder."""

    def __init__(self, database: Database, workspace: Workspace, settings: DraftSettings) -> None:
        self._database, self._workspace, self._settings = database, workspace, settings
        self._door = Door(settings.verified_at_once, settings.lock_wait_s)

    def find(self, digest: str) -> Upload:
        """Return the state of a file. Raise AbsentError."""
        found = self._find(digest)
        if found is None:
            raise AbsentError(f"no file {digest!r:.80} was begun here; begin it with POST /v1/blobs")
        return found

    def begin(self, digest: str, size_bytes: int, by: str, now: datetime) -> Upload:
        """Reserve room for a file, or return the upload that exists.

        Raise ProblemError if another size was announced or there is no room, RequestError TOO_LARGE, UNAVAILABLE.
        """
        limit_bytes = self._workspace.settings.release_file_limit_bytes
        if size_bytes > limit_bytes:
            problem = f"a file has at most {limit_bytes} bytes (release_file_limit_bytes), not {size_bytes}"
            raise RequestError(Fault.TOO_LARGE, problem)
        with folder_problems(self._workspace, self._settings), self._reserving():
            found = self._find(digest)
            if found is not None:
                _check_size(found, size_bytes)
                return found
            self._check_room(size_bytes)
            with self._database.write() as connection:
                audit.append(connection, Deed(by, "blobs.begin", digest, {"size_bytes": size_bytes}), now)
                self._part(digest, size_bytes).touch()
                sync_folder(self._workspace.uploads)
        return self.find(digest)

    def append(self, digest: str, offset: int) -> Appending:
        """Hold an incomplete upload, to add bytes from `offset` on; the caller closes it.

        Raise AbsentError, ProblemError if it has another length or another request adds to it, RequestError.
        """
        with folder_problems(self._workspace, self._settings), ExitStack() as undone:
            found = self.find(digest)
            if found.complete:
                raise _wrong_offset(found)
            part = self._part(digest, found.size_bytes)
            file = undone.enter_context(part.open("r+b"))
            _lock_upload(file, part)
            length = file.seek(0, os.SEEK_END)
            if length != offset:
                raise _wrong_offset(Upload(digest, found.size_bytes, length, complete=False, expires=None))
            undone.pop_all()
            return Appending(file, found.size_bytes, part, lambda: folder_problems(self._workspace, self._settings))

    def complete(self, digest: str, by: str, now: datetime) -> Upload:
        """Stage a file if all its bytes are received; otherwise leave it as it is.

        Raise ProblemError, and remove the upload, if its bytes have another digest.
        """
        with folder_problems(self._workspace, self._settings):
            found = self.find(digest)
            if found.complete or found.received_bytes < found.size_bytes:
                return found
            part = self._part(digest, found.size_bytes)
            with self._verifying(digest), part.open("rb") as file:
                _lock_upload(file, part)
                actual = hashlib.file_digest(file, "sha256").hexdigest()
                if actual != digest:
                    part.unlink()
                    problem = f"what came has the SHA-256 digest {actual}, not {digest}; it was removed, send it again"
                    raise ProblemError(UPLOAD_MISMATCH.status, problem, kind=UPLOAD_MISMATCH)
                self._stage(part, digest, found.size_bytes, by, now)
        return self.find(digest)

    @contextmanager
    def _verifying(self, digest: str) -> Iterator[None]:
        """Limit the number of threads that hash files. Raise RequestError OVERLOADED."""
        with self._door.entered(digest) as has_place:
            if not has_place:
                problem = "all bytes are here and other files are being verified; send an empty PATCH later"
                raise RequestError(Fault.OVERLOADED, problem, retry_after_s=AGAIN_S)
            yield

    def expire(self, now: datetime, wanted: frozenset[str]) -> int:
        """Remove uploads idle for `unfinished_kept_h`, and staged files that no draft names (`wanted`).

        The caller holds the folder's lock. Return how many files were removed. Raise OSError.
        """
        before = now - timedelta(hours=self._settings.unfinished_kept_h)
        staged = (file for file in _files(self._workspace.staged) if self._name(file) not in wanted)
        removed = 0
        for file in (*_files(self._workspace.uploads), *staged):
            if _modified(file) < before:
                file.unlink(missing_ok=True)
                removed += 1
        return removed

    def _name(self, staged: Path) -> str:
        return str(staged.relative_to(self._workspace.staged))

    def _find(self, digest: str) -> Upload | None:
        if not DIGEST_PATTERN.fullmatch(digest):
            return None
        for root in (self._workspace.public, self._workspace.staged):
            if (root / blob_file(digest)).is_file():
                size_bytes = (root / blob_file(digest)).stat().st_size
                return Upload(digest, size_bytes, size_bytes, complete=True, expires=None)
        part = next(iter(self._workspace.uploads.glob(f"{digest}.*")), None)
        if part is None:
            return None
        expires = _modified(part) + timedelta(hours=self._settings.unfinished_kept_h)
        return Upload(digest, int(part.suffix[1:]), part.stat().st_size, complete=False, expires=expires)

    def _part(self, digest: str, size_bytes: int) -> Path:
        return self._workspace.uploads / f"{digest}.{size_bytes}"

    def _stage(self, part: Path, digest: str, size_bytes: int, by: str, now: datetime) -> None:
        place = self._workspace.staged / blob_file(digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        with self._database.write() as connection:
            audit.append(connection, Deed(by, "blobs.upload", digest, {"size_bytes": size_bytes}), now)
            part.chmod(0o644)
            part.replace(place)
            os.utime(place)
            for folder in (place.parent, *place.parent.relative_to(self._workspace.folder).parents):
                sync_folder(self._workspace.folder / folder)
            sync_folder(part.parent)

    @contextmanager
    def _reserving(self) -> Iterator[None]:
        """Serialise reservations in all replicas that share the folder."""
        self._workspace.uploads.mkdir(parents=True, exist_ok=True)
        with (self._workspace.uploads / LOCK_FILE).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _check_room(self, size_bytes: int) -> None:
        parts, staged, limits = _files(self._workspace.uploads), _files(self._workspace.staged / BLOBS), self._settings
        held = sum(int(part.suffix[1:]) for part in parts) + sum(file.stat().st_size for file in staged)
        count = len(parts) + len(staged)
        if count >= limits.unpublished_limit_files or held + size_bytes > limits.unpublished_limit_bytes:
            problem = f"{count} uploads of {held} bytes are not published, and {size_bytes} bytes more would be beyond"
            problem += " [drafts] unpublished_limit_files or unpublished_limit_bytes"
            remedy = "publish or withdraw drafts; what no draft names is removed after unfinished_kept_h"
            raise ProblemError(UPLOADS_FULL.status, f"{problem}; {remedy}", kind=UPLOADS_FULL)


class Appending:
    """Incomplete upload that bytes are added to: `add` for each piece, then `sync`, and `close` in any case."""

    def __init__(
        self, file: BinaryIO, size_bytes: int, part: Path, told: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._file, self._size_bytes, self._part, self._told = file, size_bytes, part, told
        self._length = file.tell()
        file.seek(max(0, self._length - TAIL_BYTES))
        self._tail = file.read(TAIL_BYTES)

    def add(self, piece: bytes) -> None:
        """Write a piece. Raise ProblemError for more bytes than announced, or for a private key; RequestError.

        An upload with a private key in it is removed.
        """
        if self._length + len(piece) > self._size_bytes:
            problem = f"{self._size_bytes} bytes were announced, more came; begin with the size of the file"
            raise ProblemError(UPLOAD_OFFSET.status, problem, kind=UPLOAD_OFFSET)
        with self._told():
            try:
                check_no_private_key(self._tail + piece)
            except PrivateKeyError as error:
                self._part.unlink(missing_ok=True)
                raise ProblemError(PRIVATE_KEY_REFUSED.status, f"the file {error}", kind=PRIVATE_KEY_REFUSED) from None
            self._file.write(piece)
        self._length += len(piece)
        self._tail = (self._tail + piece)[-TAIL_BYTES:]

    def sync(self) -> None:
        """Bring what was written to the disk. Raise RequestError."""
        with self._told():
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the upload for other requests. Raise RequestError."""
        with self._told():
            self._file.close()


def _check_size(found: Upload, size_bytes: int) -> None:
    if found.size_bytes != size_bytes:
        problem = f"the file {found.digest} was announced with {found.size_bytes} bytes, now with {size_bytes}"
        raise ProblemError(UPLOAD_MISMATCH.status, f"{problem}; check the file", kind=UPLOAD_MISMATCH)


def _wrong_offset(found: Upload) -> ProblemError:
    held = "is complete" if found.complete else f"has {found.received_bytes} of {found.size_bytes} bytes"
    problem = f"the file {found.digest} {held}; go on from there"
    return ProblemError(UPLOAD_OFFSET.status, problem, kind=UPLOAD_OFFSET)


def _lock_upload(file: BinaryIO, part: Path) -> None:
    """Hold an upload until the file is closed. Raise ProblemError while another request holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        problem = "another request adds to this file; ask for its state, then go on"
        raise ProblemError(IN_PROGRESS.status, problem, retry_after_s=AGAIN_S, kind=IN_PROGRESS) from None
    if not part.exists():  # it was completed, expired or refused in between
        raise ProblemError(UPLOAD_OFFSET.status, "the upload has just ended; ask for its state", kind=UPLOAD_OFFSET)


def _files(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("[!.]*") if file.is_file()]


def _modified(file: Path) -> datetime:
    return datetime.fromtimestamp(file.stat().st_mtime, UTC)
