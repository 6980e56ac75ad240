"""Files of releases that arrive in pieces, each named by its SHA-256 digest.

A file is in `uploads/` until it is complete and has its digest; then it is renamed into `staged/`, where drafts may
name it. Acknowledged bytes are on the disk. If the process is killed, they stay, and the client
continues after them.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from io import BufferedRandom
from pathlib import Path
from typing import BinaryIO

from fleet.controller.audit import Deed
from fleet.controller.control.concurrency_limit import ConcurrencyLimit
from fleet.controller.control.folder_problems import folder_lock, folder_problems
from fleet.controller.control.settings import DraftSettings
from fleet.controller.database import audit
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AbsentError
from fleet.controller.problems import ProblemError
from fleet.problem_types import IN_PROGRESS, PRIVATE_KEY_REFUSED, UPLOAD_MISMATCH, UPLOAD_OFFSET, UPLOADS_FULL
from fleet.publisher.draft_rules import PrivateKeyError, check_no_private_key
from fleet.publisher.repository import BLOBS, blob_file
from fleet.publisher.workspace import Workspace
from fleet.times import moment
from gateway.domain.errors import Fault, RequestError
from gateway.domain.manifest_toml import DIGEST_PATTERN
from gateway.files.durable import sync_folder
from gateway.files.locks import try_lock

SHOWN = "[!.]*"
"""Pattern of files that are not hidden: locks and files that are just written are."""
TAIL_BYTES = 32
"""Bytes of the previous piece that are searched with the next one: a private key may span both."""
AGAIN_S = 1.0
"""Retry-After, in seconds, while another request writes to the same upload."""


@dataclass(frozen=True, slots=True)
class Upload:
    """State of a file. `received_bytes` are on the disk.

    `expires`: time of removal unless bytes arrive or a draft names the file; None if it is published.
    """

    digest: str
    size_bytes: int
    received_bytes: int
    complete: bool
    expires: datetime | None


class Uploads:
    """Uploads of a controller: one per process, for any thread. Replicas may share the folder."""

    def __init__(self, database: Database, workspace: Workspace, settings: DraftSettings) -> None:
        self._database, self._workspace, self._settings = database, workspace, settings
        self._limit = ConcurrencyLimit(settings.verified_at_once, settings.lock_wait_s)

    def find(self, digest: str) -> Upload:
        """Return the state of a file. Raise AbsentError."""
        found = self._find(digest)
        if found is None:
            raise AbsentError(f"no file {digest!r:.80} was begun here; begin it with POST /v1/blobs")
        return found

    def begin(self, digest: str, size_bytes: int, by: str, now: datetime) -> Upload:
        """Reserve room for a file, or keep the one that exists for longer.

        Raise ProblemError if another size was announced or there is no room; RequestError TOO_LARGE, OVERLOADED,
        UNAVAILABLE.
        """
        limit_bytes = self._workspace.settings.release_file_limit_bytes
        if size_bytes > limit_bytes:
            problem = f"a file has at most {limit_bytes} bytes (release_file_limit_bytes), not {size_bytes}"
            raise RequestError(Fault.TOO_LARGE, problem)
        with folder_problems(self._workspace, self._settings), self._reserving():
            found = self._find(digest)
            if found is not None:
                _check_size(found, size_bytes)
                self._renew(found)
            else:
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
            file = undone.enter_context(_held(part))
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
            with self._verifying(digest), _held(part) as file:
                actual = hashlib.file_digest(file, "sha256").hexdigest()
                if actual != digest:
                    part.unlink()
                    problem = f"the received bytes have the SHA-256 digest {actual}, not {digest}, and were removed"
                    raise ProblemError(UPLOAD_MISMATCH.status, f"{problem}; send the file again", kind=UPLOAD_MISMATCH)
                self._stage(part, digest, found.size_bytes, by, now)
        return self.find(digest)

    @contextmanager
    def _verifying(self, digest: str) -> Iterator[None]:
        """Limit the number of threads that hash files. Raise RequestError OVERLOADED."""
        with self._limit.entered(digest) as has_place:
            if not has_place:
                problem = "all bytes are here and other files are being verified; send an empty PATCH later"
                raise RequestError(Fault.OVERLOADED, problem, retry_after_s=AGAIN_S)
            yield

    def expire(self, now: datetime, wanted: frozenset[str]) -> int:
        """Remove uploads idle for `unfinished_kept_h`, and staged files that no draft names (`wanted`).

        The caller holds the folder's lock. Return how many files were removed. Raise OSError, RequestError OVERLOADED.
        """
        removed = 0
        with ExitStack() as stack:
            if self._workspace.uploads.is_dir():  # `begin` may keep a file for longer at the same time
                stack.enter_context(self._reserving())
            staged = _files(self._workspace.staged.rglob(SHOWN))
            idle = {file: found for file, found in staged.items() if self._name(file) not in wanted}
            for file, found in (_files(self._workspace.uploads.glob(SHOWN)) | idle).items():
                if self._expires(found) < now:
                    file.unlink(missing_ok=True)
                    removed += 1
        return removed

    def _name(self, staged: Path) -> str:
        return str(staged.relative_to(self._workspace.staged))

    def _find(self, digest: str) -> Upload | None:
        """Search in the direction in which files move meanwhile: `uploads`, `staged`, `public`."""
        if not DIGEST_PATTERN.fullmatch(digest):
            return None
        parts = _files(self._workspace.uploads.glob(f"{digest}.*"))
        for root in (self._workspace.staged, self._workspace.public):
            if found := _state(root / blob_file(digest)):
                expires = self._expires(found) if root == self._workspace.staged else None
                return Upload(digest, found.st_size, found.st_size, complete=True, expires=expires)
        for part, found in parts.items():
            size_bytes, expires = int(part.suffix[1:]), self._expires(found)
            return Upload(digest, size_bytes, found.st_size, complete=False, expires=expires)
        return None

    def _expires(self, found: os.stat_result) -> datetime:
        return datetime.fromtimestamp(found.st_mtime, UTC) + timedelta(hours=self._settings.unfinished_kept_h)

    def _renew(self, found: Upload) -> None:
        for file in (self._part(found.digest, found.size_bytes), self._workspace.staged / blob_file(found.digest)):
            with suppress(FileNotFoundError):
                os.utime(file)

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

    def _reserving(self) -> AbstractContextManager[None]:
        """Serialise reservations in all replicas that share the folder. Raise RequestError OVERLOADED."""
        return folder_lock(self._workspace.uploads, self._settings.lock_wait_s)

    def _check_room(self, size_bytes: int) -> None:
        parts, limits = _files(self._workspace.uploads.glob(SHOWN)), self._settings
        staged = _files((self._workspace.staged / BLOBS).glob(SHOWN))
        held = sum(int(part.suffix[1:]) for part in parts) + sum(found.st_size for found in staged.values())
        count = len(parts) + len(staged)
        if count >= limits.unpublished_limit_files or held + size_bytes > limits.unpublished_limit_bytes:
            problem = f"{count} uploads of {held} bytes are not published, and {size_bytes} bytes more would be beyond"
            problem += " [drafts] unpublished_limit_files or unpublished_limit_bytes"
            remedy = "publish or withdraw drafts; what no draft names is removed after unfinished_kept_h"
            raise ProblemError(UPLOADS_FULL.status, f"{problem}; {remedy}", kind=UPLOADS_FULL)


class Appending:
    """Incomplete upload that bytes are added to: `add` for each piece, then `sync`, and `close` in any case."""

    def __init__(
        self, file: BinaryIO, size_bytes: int, part: Path, problems: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._file, self._size_bytes, self._part, self._problems = file, size_bytes, part, problems
        self._length = file.tell()
        file.seek(max(0, self._length - TAIL_BYTES))
        self._tail = file.read(TAIL_BYTES)

    def add(self, piece: bytes) -> None:
        """Write a piece. Raise ProblemError for more bytes than announced, or for a private key; RequestError.

        An upload with a private key in it is removed.
        """
        if self._length + len(piece) > self._size_bytes:
            problem = f"{self._size_bytes} bytes were announced, more were received; begin with the size of the file"
            raise ProblemError(UPLOAD_OFFSET.status, problem, kind=UPLOAD_OFFSET)
        with self._problems():
            searched = self._tail + piece
            try:
                check_no_private_key(searched)
            except PrivateKeyError as error:
                self._part.unlink(missing_ok=True)
                raise ProblemError(PRIVATE_KEY_REFUSED.status, f"the file {error}", kind=PRIVATE_KEY_REFUSED) from None
            self._file.write(piece)
        self._length += len(piece)
        self._tail = searched[-TAIL_BYTES:]

    def sync(self) -> None:
        """Bring what was written to the disk. Raise RequestError."""
        with self._problems():
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the upload for other requests. Raise RequestError."""
        with self._problems():
            self._file.close()


def _check_size(found: Upload, size_bytes: int) -> None:
    if found.size_bytes != size_bytes:
        problem = f"the file {found.digest} was announced with {found.size_bytes} bytes, now with {size_bytes}"
        if found.expires and not found.complete:
            problem += (
                f". If the first size was wrong, begin again after {moment(found.expires)}, when that upload expires"
            )
        raise ProblemError(UPLOAD_MISMATCH.status, f"{problem}; check the file", kind=UPLOAD_MISMATCH)


def _wrong_offset(found: Upload) -> ProblemError:
    held = "is complete" if found.complete else f"has {found.received_bytes} of {found.size_bytes} bytes"
    problem = f"the file {found.digest} {held}; continue from there"
    return ProblemError(UPLOAD_OFFSET.status, problem, kind=UPLOAD_OFFSET)


def _held(part: Path) -> BufferedRandom:
    """Open an upload, and hold it until the file is closed.

    Raise ProblemError if another request holds it, or if it was completed, expired or refused meanwhile.
    """
    with ExitStack() as undone, suppress(FileNotFoundError):
        file = undone.enter_context(part.open("r+b"))
        if not try_lock(file):
            problem = "another request adds to this file; ask for its state, then continue"
            raise ProblemError(IN_PROGRESS.status, problem, retry_after_s=AGAIN_S, kind=IN_PROGRESS)
        if part.exists():
            undone.pop_all()
            return file
    raise ProblemError(UPLOAD_OFFSET.status, "the upload has just ended; ask for its state", kind=UPLOAD_OFFSET)


def _files(paths: Iterable[Path]) -> dict[Path, os.stat_result]:
    """Return the files among `paths` with their state, without those that other requests move or remove meanwhile."""
    return {path: found for path in paths if (found := _state(path))}


def _state(file: Path) -> os.stat_result | None:
    """Return the state of a file, or None if there is none."""
    with suppress(FileNotFoundError):
        found = file.stat()
        return found if stat.S_ISREG(found.st_mode) else None
    return None
