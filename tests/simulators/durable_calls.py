"""Scenario for `power`: the operations of `gateway.common.files.durable` and a download, to observe their system calls.

ext4 and xfs write names in order, so a later fsync hides a missing one. Other file systems do not. The calls show that
each name is synced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from gateway.common.domain.manifest import Artifact
from gateway.common.files import durable
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.settings import StoreSettings
from gateway.device.store.materialised import materialise, sweep
from tests.simulators.store_update import CONTENTS, VARIANT, digest, release

CALLS = {
    "write_file": "open write fchmod fsync rename fsync",
    "make_folder": "mkdir chmod fsync fsync mkdir chmod fsync fsync",
    "remove_file": "unlink fsync",
    "remove_tree": "rename fsync unlink rmdir",
    "download": "open fchmod fallocate write fsync rename fsync",
    "materialise": (
        "mkdir chmod link rename mkdir chmod link rename mkdir chmod link rename fsync fsync fsync rename fsync"
    ),
    "variant": "mkdir chmod link rename mkdir chmod link rename fsync fsync fsync",
    "collect": "unlink unlink fsync",
}
"""System calls by operation, with the same names on every architecture: `unlink` includes `unlinkat`."""
EMPTY = hashlib.sha256(b"content").hexdigest()


def prepare(folder: Path) -> None:
    """Create the initial files."""
    blobs = LocalBlobs(folder / "blobs", StoreSettings(keep_free_bytes=0))
    blobs.prepare()
    for content in CONTENTS["3"].values():
        blobs.put(content)
    for content in (b"left", b"over"):
        blobs.put(content)
    (folder / "releases").mkdir()
    materialise(digest("3"), release("3"), [], blobs, folder / "releases")
    durable.make_folder(folder / "tree")
    (folder / "tree" / "file").touch()
    (folder / "removed").touch()


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Perform the operation of each name in CALLS, then claim it."""
    blobs = LocalBlobs(folder / "blobs", StoreSettings(keep_free_bytes=0))
    needed = {artifact.sha256 for artifact in files()}
    work: dict[str, Callable[[], object]] = {
        "write_file": lambda: durable.write_file(folder / "written", b"content"),
        "make_folder": lambda: durable.make_folder(folder / "a" / "b"),
        "remove_file": lambda: durable.remove_file(folder / "removed"),
        "remove_tree": lambda: durable.remove_tree(folder / "tree"),
        "download": lambda: download(blobs),
        "variant": lambda: materialise(digest("3"), release("3"), [VARIANT], blobs, folder / "releases"),
        "collect": lambda: blobs.collect({*needed, EMPTY}),
    }
    for name, act in work.items():
        act()
        claim(name)
    sweep(folder / "releases", frozenset())
    claim("remove")
    materialise(digest("3"), release("3"), [VARIANT], blobs, folder / "releases")
    claim("materialise")


def inspect(folder: Path) -> list[str]:
    """Return the names of all files."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def files() -> tuple[Artifact, ...]:
    """Return the files of the release that is materialised."""
    return release("3").files([VARIANT])


def download(blobs: LocalBlobs) -> None:
    """Download one blob in one chunk."""
    with blobs.writer(EMPTY, 7) as part:
        part.append(b"content")
        part.finish()
