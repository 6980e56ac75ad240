"""Releases as folders that a runtime can open: `<folder>/<release digest>/…`, hard links to blobs.

Every file has the path that the manifest states. The folder of a release appears atomically. A variant that is added
later appears file by file; no record refers to it before `materialise` has returned.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

from gateway.common.domain.manifest import Artifact
from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.signed_release import SignedRelease
from gateway.common.files import durable
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import DamagedError, StoreAbsentError, StoreError, store_errors
from gateway.common.store.plain import check_digest


def materialise(digest: str, release: SignedRelease, variants: Sequence[str], blobs: LocalBlobs, folder: Path) -> Path:
    """Return the folder of `release`, whose signed document has `digest`, with the verified files of `variants`.

    Safe to repeat, also after a power failure: existing files are verified, and damaged ones are restored from the
    blobs. `folder` contains all releases. Raises AbsentError and DamagedError for a blob that must be fetched (again),
    SpaceError, StoreError.
    """
    files = release.files(variants)
    for artifact in files:
        _check(artifact, blobs)
    home = folder / check_digest(digest)
    with store_errors(home):
        durable.make_folder(folder)
        if home.is_dir():
            _fill(home, files, blobs)
        else:
            staged = durable.temporary(folder)
            staged.mkdir()
            staged.chmod(durable.FOLDER_MODE)
            _fill(staged, files, blobs)
            durable.rename(staged, home)
    return home


def sweep(folder: Path, referenced: AbstractSet[str]) -> int:
    """Remove releases that are not `referenced`, and temporary entries of killed writers. Raises StoreError.

    Return the number of removed entries. Names that are no digests are kept.
    """
    with store_errors(folder):
        if not folder.is_dir():
            return 0
        count = durable.sweep(folder)
        idle = [
            home.name
            for home in folder.iterdir()
            if DIGEST_PATTERN.fullmatch(home.name) and home.name not in referenced
        ]
        return count + sum(durable.remove_tree(folder / name) for name in idle)


def _check(artifact: Artifact, blobs: LocalBlobs) -> None:
    path = blobs.path(artifact.sha256)
    if not blobs.has(artifact.sha256, artifact.size_bytes):
        raise StoreAbsentError(
            f"{artifact.path} ({artifact.size_bytes} bytes) is not in the store; fetch it", file=path
        )
    if not blobs.verify(artifact.sha256):
        raise DamagedError(f"{artifact.path} is damaged on the disk; discard it and fetch it again", file=path)


def _fill(home: Path, files: Iterable[Artifact], blobs: LocalBlobs) -> None:
    """Link every file, then sync all names, including those that an interrupted run created without a sync.

    Temporary entries of that run are removed, too.
    """
    folders = {home}
    for artifact in files:
        place = home / artifact.path
        _make_room_for(place, home)
        if not _same_file(place, blobs.path(artifact.sha256)):
            _link(blobs.path(artifact.sha256), place)
        folders.update(parent for parent in place.parents if parent.is_relative_to(home))
    for folder in sorted(folders, reverse=True):
        durable.sweep(folder)
        durable.sync_folder(folder)


def _make_room_for(place: Path, home: Path) -> None:
    for parent in reversed(place.relative_to(home).parents[:-1]):
        folder = home / parent
        if not folder.is_dir():
            folder.mkdir()
            folder.chmod(durable.FOLDER_MODE)


def _link(blob: Path, place: Path) -> None:
    staged = durable.temporary(place.parent)
    try:
        os.link(blob, staged, follow_symlinks=False)
    except PermissionError as error:
        problem = f"cannot be linked: {error.strerror}; keep the store on a file system with hard links"
        raise StoreError(problem, file=blob) from error
    staged.replace(place)


def _same_file(place: Path, blob: Path) -> bool:
    try:
        found, wanted = place.lstat(), blob.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) == (wanted.st_dev, wanted.st_ino)
