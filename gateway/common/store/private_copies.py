"""Private copies of the files that a runtime opens, hashed while they are made.

A runtime opens paths, and some of them lead to further files (external data, weights of a graph). A user who may write
to the folder of a release could replace a file after its digest was checked. Therefore the digest is checked on a copy
that only this user can change. The copy is removed once the session is open: mapped files stay mapped.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact
from gateway.common.files.locks import folder_in_use, is_abandoned
from gateway.common.memory import available_bytes
from gateway.common.store.plain import open_plain

PREFIX = "edge-gateway-opened-"
CHUNK_BYTES = 1024 * 1024
MEMORY_SHARE = 0.25
"""Largest share of the available memory for copies in memory; larger copies are on the disk."""
SMALL_BYTES = 256 * 1024
"""Size up to which copies are in memory without a look at how much is available, which takes 1 ms."""
ABANDONED_AFTER_S = 2.0
"""Age of copies without a lock from which a killed process left them; new ones are locked at once."""
ON_DISK = Path("/var/tmp")  # noqa: S108  the copies have a folder of their own, with mode 0700


@contextmanager
def private_copies(artifacts: Iterable[Artifact], folder: Path, place: Path | None = None) -> Iterator[Path]:
    """Lend a folder with copies of these files of `folder`, at the same paths. It is made in `place`, if that is given.

    Raises VariantError for a file that does not match its digest, or cannot be copied. A VariantError of the caller
    names the paths of `folder`.
    """
    wanted = tuple(artifacts)
    if place is None:
        runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
        in_memory = [Path(name) for name in (runtime, "/dev/shm") if name]  # noqa: S108  as ON_DISK
        size_bytes = sum(artifact.size_bytes for artifact in wanted)
        free_bytes = available_bytes() if size_bytes > SMALL_BYTES else SMALL_BYTES / MEMORY_SHARE
        place = choose_place(size_bytes, free_bytes, in_memory, ON_DISK)
    made = _make_folder(place)
    try:
        with folder_in_use(made):
            for artifact in wanted:
                _copy(artifact, folder / artifact.path, made / artifact.path)
            yield made
    except VariantError as error:
        reason = error.reason.replace(str(made), str(folder))
        raise VariantError(reason, remedy=error.remedy, transient=error.transient) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def choose_place(size_bytes: int, available_bytes: float, in_memory: Sequence[Path], on_disk: Path) -> Path:
    """Return the folder for copies of that size: the first one in memory with enough space, or the disk."""
    if size_bytes <= available_bytes * MEMORY_SHARE:
        for place in in_memory:
            if os.access(place, os.W_OK) and shutil.disk_usage(place).free > size_bytes:
                return place
    return on_disk


def _make_folder(place: Path) -> Path:
    try:
        with os.scandir(place) as entries:  # those of processes that were killed while they opened a model
            left = [entry.name for entry in entries if entry.name.startswith(PREFIX)]
        for name in left:
            pid = name.removeprefix(PREFIX).partition("-")[0]
            # Processes of another container, which may share the folder, are not in /proc: the lock decides.
            if not Path("/proc", pid).exists() and is_abandoned(place / name, ABANDONED_AFTER_S):
                shutil.rmtree(place / name, ignore_errors=True)
        return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
    except OSError as error:
        raise _no_room(place, error) from error


def _copy(artifact: Artifact, source: Path, copy: Path) -> None:
    """Copy and hash in one pass, up to one byte beyond the declared size. Raises VariantError."""
    digest, left_bytes = hashlib.sha256(), artifact.size_bytes + 1
    try:
        if "/" in artifact.path:
            copy.parent.mkdir(parents=True, exist_ok=True)
        with open_plain(source) as reading, copy.open("xb") as writing:
            while chunk := reading.read(min(CHUNK_BYTES, left_bytes)):
                left_bytes -= len(chunk)
                digest.update(chunk)
                writing.write(chunk)
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise _no_room(copy.parent, error) from error
        raise changed(source) from error
    if digest.hexdigest() != artifact.sha256:
        raise changed(source)


def changed(file: Path) -> VariantError:
    """Return the error for a file that has changed since its release was read."""
    return VariantError(f"{file} changed since it was read", remedy="reload the models (SIGHUP)", transient=True)


def _no_room(place: Path, error: OSError) -> VariantError:
    problem = f"the model's files cannot be copied to {place}: {error.strerror or error}"
    return VariantError(problem, remedy="free some memory, or room on the disk", transient=True)
