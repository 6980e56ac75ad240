"""Files of releases that arrive in pieces, each named by its SHA-256 digest.

A file is in `uploads/` until it is complete and has its digest; then it is renamed into `staged/`, where drafts may
name it. Acknowledged bytes are on the disk. If the process is killed, they stay, and the client continues after them.

Every token has uploads of its own, so that no token can hinder another one's upload of the same file:
`uploads/DIGEST.SIZE.TOKEN`. An empty file `uploads/.DIGEST.TOKEN` names the token that staged a file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from io import BufferedRandom
from pathlib import Path
from typing import BinaryIO

from fleet.controller.audit import Deed
from fleet.controller.control.concurrency_limit import ConcurrencyLimit
from fleet.controller.control.folder_problems import folder_lock, folder_problems
from fleet.controller.control.settings import DraftSettings
from fleet.controller.database import audit
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AbsentError, ConflictError
from fleet.controller.problems import ProblemError
from fleet.problem_types import IN_PROGRESS, PRIVATE_KEY_REFUSED, UPLOAD_MISMATCH, UPLOAD_OFFSET, UPLOADS_FULL
from fleet.publisher.draft_rules import PrivateKeyError, check_no_private_key, new_targets
from fleet.publisher.drafts import Draft
from fleet.publisher.repository import BLOBS, blob_file
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.python310 import sha256_of
from gateway.common.files.durable import sync_folder
from gateway.common.files.locks import try_lock

SHOWN = "[!.]*"
"""Pattern of files that are not hidden: locks and files that are just written are."""
OWNERS = f".{'[0-9a-f]' * 64}.*"
"""Pattern of files that name the token of a staged file."""
TAIL_BYTES = 32
"""Bytes of the previous piece that are searched with the next one: a private key may span both."""
AGAIN_S = 1.0
"""Retry-After, in seconds, while another request writes to the same upload."""


@dataclass(frozen=True, slots=True)
class Upload:
    """State of a file. `received_bytes` are on the disk.

    `expires`: time of removal unless bytes arrive or a draft names the file; None if it is published. `by`: the token
    that sent it, "" for a published file, or one that was staged in the folder itself.
    """

    digest: str
    size_bytes: int
    received_bytes: int
    complete: bool
    expires: datetime | None
    by: str = ""


class Uploads:
    """Uploads of a controller: one per process, for any thread. Replicas may share the folder."""

    def __init__(self, database: Database, workspace: Workspace, settings: DraftSettings) -> None:
        self._database, self._workspace, self._settings = database, workspace, settings
        self._limit = ConcurrencyLimit(settings.verified_at_once, settings.lock_wait_s)

    def find(self, digest: str, by: str, *, others: bool = False) -> Upload:
        """Return a complete file, or the upload of this token, else with `others` another one. Raise AbsentError."""
        found = self._find(digest, by, others=others)
        if found is None:
            raise AbsentError(f"no file {digest!r:.80} was begun here with this token; begin it with POST /v1/blobs")
        return found

    def unpublished(self) -> list[Upload]:
        """Return all incomplete uploads and staged files, by digest and token."""
        parts = _files(self._workspace.uploads.glob(f"{SHOWN}.*.*"))
        found = [self._incomplete(part, state) for part, state in parts.items()]
        owners = {file.name[1:65]: file.name[66:] for file in self._workspace.uploads.glob(OWNERS)}
        for file, state in _files((self._workspace.staged / BLOBS).rglob(SHOWN)).items():
            expires, by = self._expires(state, complete=True), owners.get(file.name, "")
            found.append(Upload(file.name, state.st_size, state.st_size, complete=True, expires=expires, by=by))
        return sorted(found, key=lambda one: (one.digest, one.by))

    def begin(self, digest: str, size_bytes: int, by: str, now: datetime) -> Upload:
        """Begin an upload of this token, or keep the file that exists for longer. Only received bytes take room.

        Raise ProblemError if another size was announced or there is no room; RequestError TOO_LARGE, OVERLOADED,
        UNAVAILABLE.
        """
        limit_bytes = self._workspace.settings.release_file_limit_bytes
        if size_bytes > limit_bytes:
            problem = f"a file has at most {limit_bytes} bytes (release_file_limit_bytes), not {size_bytes}"
            raise RequestError(Fault.TOO_LARGE, problem)
        with folder_problems(self._workspace, self._settings), self._reserving():
            found = self._find(digest, by)
            if found is not None:
                _check_size(found, size_bytes)
                with suppress(FileNotFoundError):
                    os.utime(self._place(found))
            else:
                self._room_bytes(by, size_bytes, more_files=1)
                with self._database.write() as connection:
                    audit.append(connection, Deed(by, "blobs.begin", digest, {"size_bytes": size_bytes}), now)
                    (self._workspace.uploads / f"{digest}.{size_bytes}.{by}").touch()
                    sync_folder(self._workspace.uploads)
        return self.find(digest, by)

    def append(self, digest: str, offset: int, by: str) -> Appending:
        """Hold an incomplete upload, to add bytes from `offset` on; the caller closes it.

        Raise AbsentError, ProblemError if it has another length or another request adds to it, RequestError.
        """
        with folder_problems(self._workspace, self._settings), ExitStack() as undone:
            found = self.find(digest, by)
            if found.complete:
                raise _wrong_offset(found)
            file = undone.enter_context(_held(self._place(found)))
            length = file.seek(0, os.SEEK_END)
            if length != offset:
                raise _wrong_offset(Upload(digest, found.size_bytes, length, complete=False, expires=None))
            room_bytes = self._room_bytes(by)
            undone.pop_all()
            problems = partial(folder_problems, self._workspace, self._settings)
            return Appending(file, found.size_bytes, room_bytes, problems)

    def complete(self, digest: str, by: str, now: datetime) -> Upload:
        """Stage a file if all its bytes are received; otherwise leave it as it is.

        Raise ProblemError, and remove the upload, if its bytes have another digest.
        """
        with folder_problems(self._workspace, self._settings):
            found = self.find(digest, by)
            if found.complete or found.received_bytes < found.size_bytes:
                return found
            part = self._place(found)
            with self._verifying(digest), _held(part) as file:
                actual = sha256_of(file)
                if actual != digest:
                    part.unlink()
                    problem = f"the received bytes have the SHA-256 digest {actual}, not {digest}, and were removed"
                    raise ProblemError(UPLOAD_MISMATCH.status, f"{problem}; send the file again", kind=UPLOAD_MISMATCH)
                self._stage(part, found, now)
        return self.find(digest, by)

    def delete(self, digest: str, by: str, deed: Deed, now: datetime, wanted: frozenset[str]) -> Upload:
        """Remove an incomplete upload of the token `by`, or a file that it staged and no draft names (`wanted`).

        The caller holds the folder's lock. Raise AbsentError, ConflictError, RequestError OVERLOADED, UNAVAILABLE.
        """
        with folder_problems(self._workspace, self._settings), self._reserving():
            found = next((one for one in self.unpublished() if (one.digest, one.by) == (digest, by)), None)
            if found is None:
                raise AbsentError(f"{by!r:.80} has no upload {digest!r:.80} here; GET /v1/blobs lists them")
            if found.complete and blob_file(digest) in wanted:
                raise ConflictError(f"a draft names the file {digest}; withdraw it first: edge-fleet drafts list")
            with self._database.write() as connection:
                audit.append(connection, deed, now)
                self._place(found).unlink(missing_ok=True)
        return found

    @contextmanager
    def _verifying(self, digest: str) -> Iterator[None]:
        """Limit the number of threads that hash files. Raise RequestError OVERLOADED."""
        with self._limit.entered(digest) as has_place:
            if not has_place:
                problem = "all bytes are here and other files are being verified; send an empty PATCH later"
                raise RequestError(Fault.OVERLOADED, problem, retry_after_s=AGAIN_S)
            yield

    def expire(self, now: datetime, wanted: frozenset[str]) -> int:
        """Remove what is due: incomplete uploads, and staged files that no draft names (`wanted`).

        The caller holds the folder's lock. Return how many files were removed. Raise OSError, RequestError OVERLOADED.
        """
        removed = 0
        with ExitStack() as stack:
            if self._workspace.uploads.is_dir():  # `begin` may keep a file for longer at the same time
                stack.enter_context(self._reserving())
            staged = _files(self._workspace.staged.rglob(SHOWN))
            base = self._workspace.staged
            idle = {file: found for file, found in staged.items() if str(file.relative_to(base)) not in wanted}
            for file, found in (_files(self._workspace.uploads.glob(SHOWN)) | idle).items():
                if self._expires(found, complete=file in idle) < now:
                    file.unlink(missing_ok=True)
                    removed += 1
            for file in self._workspace.uploads.glob(OWNERS):
                if not (self._workspace.staged / blob_file(file.name[1:65])).exists():
                    file.unlink(missing_ok=True)
        return removed

    def _find(self, digest: str, by: str, *, others: bool = False) -> Upload | None:
        """Search in the direction in which files move meanwhile: `uploads`, `staged`, `public`."""
        if not DIGEST_PATTERN.fullmatch(digest):
            return None
        parts = _files(self._workspace.uploads.glob(f"{digest}.*.*"))
        for root in (self._workspace.staged, self._workspace.public):
            if found := _state(root / blob_file(digest)):
                expires = self._expires(found, complete=True) if root == self._workspace.staged else None
                return Upload(digest, found.st_size, found.st_size, complete=True, expires=expires)
        uploads = (self._incomplete(part, found) for part, found in parts.items())
        return next((one for one in sorted(uploads, key=lambda one: one.by != by) if others or one.by == by), None)

    def _incomplete(self, part: Path, found: os.stat_result) -> Upload:
        digest, size, by = part.name.split(".", 2)
        return Upload(digest, int(size), found.st_size, complete=False, expires=self._expires(found), by=by)

    def _expires(self, found: os.stat_result, *, complete: bool = False) -> datetime:
        is_empty = not (complete or found.st_size)
        kept_h = self._settings.empty_kept_min / 60 if is_empty else self._settings.unfinished_kept_h
        return datetime.fromtimestamp(found.st_mtime, timezone.utc) + timedelta(hours=kept_h)

    def _place(self, found: Upload) -> Path:
        if found.complete:
            return self._workspace.staged / blob_file(found.digest)
        return self._workspace.uploads / f"{found.digest}.{found.size_bytes}.{found.by}"

    def _stage(self, part: Path, found: Upload, now: datetime) -> None:
        """Stage a file. Uploads of it by other tokens end: the file is complete for all."""
        digest, place = found.digest, self._workspace.staged / blob_file(found.digest)
        place.parent.mkdir(parents=True, exist_ok=True)
        with self._database.write() as connection:
            audit.append(connection, Deed(found.by, "blobs.upload", digest, {"size_bytes": found.size_bytes}), now)
            part.chmod(0o644)
            part.replace(place)
            os.utime(place)
            for other in self._workspace.uploads.glob(f"*{digest}.*"):
                other.unlink(missing_ok=True)
            (self._workspace.uploads / f".{digest}.{found.by}").touch()
            for folder in (place.parent, *place.parent.relative_to(self._workspace.folder).parents):
                sync_folder(self._workspace.folder / folder)
            sync_folder(part.parent)

    def _reserving(self) -> AbstractContextManager[None]:
        """Serialise reservations in all replicas that share the folder. Raise RequestError OVERLOADED."""
        return folder_lock(self._workspace.uploads, self._settings.lock_wait_s)

    def _room_bytes(self, by: str, size_bytes: int = 0, *, more_files: int = 0) -> int:
        """Return how many bytes a token may still send. Raise ProblemError if that is too little, or it has too many.

        Concurrent requests do not count each other's bytes: each sends at most `request_limit_bytes`.
        """
        limits, everything, rooms = self._settings, self.unpublished(), []
        mine = [one for one in everything if one.by == by]
        if more_files and sum(not one.complete for one in mine) >= limits.open_limit_per_token:
            raise _full(f"{by!r:.80} has {limits.open_limit_per_token} incomplete uploads, the most of one token")
        for who, found, share in (("all tokens", everything, 1.0), (repr(by), mine, limits.share_per_token)):
            held_bytes = sum(one.received_bytes for one in found)
            rooms.append(int(share * limits.unpublished_limit_bytes) - held_bytes)
            if len(found) + more_files > share * limits.unpublished_limit_files or rooms[-1] < size_bytes:
                problem = f"{len(found)} uploads of {who:.80}, {held_bytes} bytes, are not published"
                bound = f"{share:.0%} of {limits.unpublished_limit_files} files or unpublished_limit_bytes"
                raise _full(f"{problem}; {size_bytes} bytes more would be beyond {bound}")
        return min(rooms)


class Appending:
    """Incomplete upload that bytes are added to: `add` for each piece, then `sync`, and `close` in any case."""

    def __init__(
        self, file: BinaryIO, size_bytes: int, room_bytes: int, problems: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._file, self._size_bytes, self._problems = file, size_bytes, problems
        self._length = file.tell()
        self._limit_bytes = self._length + room_bytes
        file.seek(max(0, self._length - TAIL_BYTES))
        self._tail = file.read(TAIL_BYTES)

    def add(self, piece: bytes) -> None:
        """Write a piece. Raise ProblemError for too many bytes, or for a private key; RequestError.

        An upload with a private key in it is removed.
        """
        if self._length + len(piece) > self._size_bytes:
            problem = f"{self._size_bytes} bytes were announced, more were received; begin with the size of the file"
            raise ProblemError(UPLOAD_OFFSET.status, problem, kind=UPLOAD_OFFSET)
        if self._length + len(piece) > self._limit_bytes:
            raise _full(f"only {self._limit_bytes} bytes of this file have room")
        with self._problems():
            searched = self._tail + piece
            try:
                check_no_private_key(searched)
            except PrivateKeyError as error:
                Path(self._file.name).unlink(missing_ok=True)
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


def named_files(work: Workspace, drafts: Iterable[Draft]) -> frozenset[str]:
    """Return the names below `staged/` of all files that drafts need. Raise ConfigurationError."""
    return frozenset(work.needed([target for draft in drafts for target in new_targets(draft)]))


def _check_size(found: Upload, size_bytes: int) -> None:
    if found.size_bytes != size_bytes:
        problem = f"the file {found.digest} was announced with {found.size_bytes} bytes, now with {size_bytes}"
        remedy = "" if found.complete else f", or begin again: DELETE /v1/blobs/{found.digest}"
        raise ProblemError(UPLOAD_MISMATCH.status, f"{problem}; check the file{remedy}", kind=UPLOAD_MISMATCH)


def _full(problem: str) -> ProblemError:
    remedy = "publish or withdraw drafts, delete uploads (edge-fleet uploads list), or wait until they expire"
    return ProblemError(UPLOADS_FULL.status, f"{problem}, see [drafts]; {remedy}", kind=UPLOADS_FULL)


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
