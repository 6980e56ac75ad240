"""Scenario for `power`: the store's part of an update from release 2 to 3; release 1 is the previous one.

Fetch, materialise, journal, active.json, retire, collect: as the agent does it, without network and daemon.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Assignment, Target
from gateway.common.domain.manifest import Artifact
from gateway.common.domain.signed_release import SignedRelease, SignedVariant, read_release, release_bytes
from gateway.common.domain.update import Step, after
from gateway.common.files import durable
from gateway.common.store.active import committed, read_active, write_active
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import StoreError
from gateway.common.store.settings import StoreSettings
from gateway.device.store import materialised
from gateway.device.store.journal import Floors, Journal
from tests.simulators.constants import settings_with

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SLOT = "meter"
VARIANT = "onnx"
CHUNK_BYTES = 40_000
SETTINGS = settings_with(StoreSettings(keep_free_bytes=0), sync_every_bytes=60_000)
CONTENTS = {
    version: {
        "manifest.toml": f"version = {version}".encode() * 30,
        "labels/common.txt": b"the same in every release " * 100,
        "onnx/model.onnx": hashlib.sha256(version.encode()).digest() * 4000,
    }
    for version in ("1", "2", "3")
}


def prepare(folder: Path) -> None:
    """Let release 2 serve, with release 1 as the previous one."""
    Journal.create(folder).close()
    for version in ("1", "2"):
        install(folder, version, lambda _: None)


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Install release 3."""
    install(folder, "3", claim)


def install(folder: Path, version: str, claim: Callable[[str], None]) -> None:
    """Commit `version`, whatever an interruption left, and remove everything superfluous."""
    blobs = LocalBlobs(folder / "blobs", SETTINGS)
    blobs.prepare()
    durable.sweep(folder)
    with contextlib.closing(Journal.open(folder)) as journal:
        accept(journal, version, claim)
        serving = read_active(folder / "active.json").slots.get(SLOT)
        if journal.update(SLOT) is None and (serving is None or serving.version != version):
            journal.begin(activation(version), int(version), NOW)
        while update := journal.update(SLOT):
            take(update.step, folder, journal, blobs, claim)
        collect(folder, blobs)


def take(step: Step, folder: Path, journal: Journal, blobs: LocalBlobs, claim: Callable[[str], None]) -> None:
    """Perform one step of the update in progress, which has been recorded."""
    update = journal.update(SLOT)
    assert update
    if step is Step.FETCH:
        fetch(update.activation.version, blobs)
    elif step is Step.LOAD:
        version = update.activation.version
        materialised.materialise(digest(version), release(version), [VARIANT], blobs, folder / "releases")
    elif step is Step.COMMIT:
        write_active(folder / "active.json", committed(read_active(folder / "active.json"), update.activation))
    if step is Step.RETIRE:
        claim(json.dumps({"installed": update.activation.version}))
        journal.finish(SLOT, NOW)
    else:
        journal.record(SLOT, after(step), NOW)


def fetch(version: str, blobs: LocalBlobs) -> None:
    """Fetch every file of the release in chunks. Partial files are continued."""
    blobs.put(release_bytes(release(version)))
    for artifact in release(version).files([VARIANT]):
        if not blobs.has(artifact.sha256, artifact.size_bytes):
            content = CONTENTS[version][artifact.path]
            with blobs.writer(artifact.sha256, artifact.size_bytes) as download:
                while download.offset < len(content):
                    download.append(content[download.offset : download.offset + CHUNK_BYTES])
                try:
                    download.finish()
                except StoreError:  # a power cut may damage a partial file
                    return fetch(version, blobs)
    return None


def accept(journal: Journal, version: str, claim: Callable[[str], None]) -> None:
    """Accept the assignment of `version`, with floors that rise with it."""
    target = Target(release(version).target, len(release_bytes(release(version))), digest(version))
    assignment = Assignment("device", int(version), NOW, NOW, {SLOT: target})
    number = int(version)
    floors = Floors(
        {"timestamp": number * 10, "assignment": number}, {"acme/meter": version}, NOW.replace(month=number)
    )
    journal.accept(assignment, version.encode() * 500, floors)
    claim(json.dumps({"floors": floors_found(journal)}))


def collect(folder: Path, blobs: LocalBlobs) -> None:
    """Remove everything that neither the serving nor the previous release needs."""
    active = read_active(folder / "active.json")
    materialised.sweep(folder / "releases", active.releases)
    blobs.collect(referenced(active.releases, blobs))


def inspect(folder: Path) -> dict[str, Any]:
    """Return what the daemon finds at boot, and all damaged files on disk."""
    active, blobs = read_active(folder / "active.json"), LocalBlobs(folder / "blobs")
    with contextlib.closing(Journal.open(folder)) as journal:
        under_way = journal.update(SLOT)
        return {
            "serves": {slot: activation.version for slot, activation in active.slots.items()},
            "previous": {slot: activation.version for slot, activation in active.previous.items()},
            "wrong": wrong(folder, blobs, active.releases),
            "floors": floors_found(journal),
            "step": under_way.step.value if under_way else "",
            "finished": [update.activation.version for update in journal.finished(10)],
            "names": sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()),
        }


def wrong(folder: Path, blobs: LocalBlobs, releases: frozenset[str]) -> list[str]:
    """Return blobs whose content does not match their name, and incomplete releases."""
    digests = [path.name for path in (folder / "blobs/sha256").iterdir() if len(path.name) == 64]
    damaged = [name for name in digests if not blobs.verify(name)]
    homes = {path.name for path in (folder / "releases").iterdir() if len(path.name) == 64} | releases
    return damaged + [home for home in homes if not whole(folder / "releases" / home, blobs)]


def whole(home: Path, blobs: LocalBlobs) -> bool:
    """Return whether a release's folder matches its document.

    A release that is being removed needs no document.
    """
    document = read_release(blobs.read(home.name, 1 << 20))
    files = document.files([VARIANT])
    return all(hashlib.sha256((home / a.path).read_bytes()).hexdigest() == a.sha256 for a in files)


def floors_found(journal: Journal) -> dict[str, Any]:
    """Return all floors as comparable values for JSON."""
    floors = journal.floors()
    assert floors.time
    return {**floors.numbers, **{name: int(v) for name, v in floors.versions.items()}, "time": floors.time.timestamp()}


def referenced(releases: frozenset[str], blobs: LocalBlobs) -> set[str]:
    """Return the digests of all blobs that `releases` need."""
    documents = [read_release(blobs.read(release, 1 << 20)) for release in releases]
    return {*releases, *(artifact.sha256 for document in documents for artifact in document.files([VARIANT]))}


def release(version: str) -> SignedRelease:
    """Return a release document with three files."""
    files = [Artifact(path, hashlib.sha256(c).hexdigest(), len(c)) for path, c in CONTENTS[version].items()]
    variant = SignedVariant(VARIANT, "onnx", "fp32", ("cpu",), tuple(files[1:]))
    return SignedRelease("acme", "meter", version, "1", NOW, files[0], None, (variant,))


def digest(version: str) -> str:
    """Return the digest of the release's document."""
    return hashlib.sha256(release_bytes(release(version))).hexdigest()


def activation(version: str) -> Activation:
    """Return the activation of `version` in the slot."""
    return Activation(SLOT, release(version).target, digest(version), (VARIANT,), (), 1)
