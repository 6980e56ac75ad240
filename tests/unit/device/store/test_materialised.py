"""Releases as folders: whole, of hard links, put right where they are not, taken away at once."""

from __future__ import annotations

import os
import shutil
import stat
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.common.domain.manifest import Artifact
from gateway.common.domain.signed_release import SignedRelease, SignedVariant, release_bytes
from gateway.common.files import durable
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import DamagedError, StoreAbsentError, StoreError
from gateway.common.store.settings import StoreSettings
from gateway.device.store.materialised import materialise, sweep

FILES = {
    "manifest.toml": b"the manifest",
    "golden.npz": b"the golden set",
    "labels.txt": b"shared by both variants",
    "onnx/int8/model.onnx": b"small",
    "onnx/model.onnx": b"large" * 1000,
}


def artifact(path: str) -> Artifact:
    return Artifact(path, sha256(FILES[path]).hexdigest(), len(FILES[path]))


SMALL = SignedVariant("small", "onnx", "int8", ("cpu",), (artifact("onnx/int8/model.onnx"), artifact("labels.txt")))
LARGE = SignedVariant("large", "onnx", "fp32", ("cpu",), (artifact("onnx/model.onnx"), artifact("labels.txt")))
RELEASE = SignedRelease(
    *("acme", "meter", "2", "1"),
    datetime(2026, 1, 1, tzinfo=UTC),
    artifact("manifest.toml"),
    artifact("golden.npz"),
    (SMALL, LARGE),
)
DIGEST = sha256(release_bytes(RELEASE)).hexdigest()
WITHOUT_VARIANTS = {"manifest.toml", "golden.npz"}


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    made = LocalBlobs(tmp_path / "blobs", StoreSettings(keep_free_bytes=0))
    made.prepare()
    for content in FILES.values():
        made.put(content)
    return made


def found(home: Path) -> dict[str, bytes]:
    return {path.relative_to(home).as_posix(): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_a_release_is_its_files_under_the_manifests_paths(blobs: LocalBlobs, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        home = materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")
    finally:
        os.umask(before)
    assert home == tmp_path / "releases" / DIGEST
    assert found(home) == {path: FILES[path] for path in WITHOUT_VARIANTS | {"labels.txt", "onnx/int8/model.onnx"}}
    for path in home.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640)
        assert path.is_dir() or path.samefile(blobs.path(sha256(path.read_bytes()).hexdigest()))
    assert stat.S_IMODE(home.stat().st_mode) == 0o750


def test_variants_join_one_by_one_and_again(blobs: LocalBlobs, tmp_path: Path) -> None:
    for variants in ([], [], ["small"], ["large"], ["large", "small"]):
        home = materialise(DIGEST, RELEASE, variants, blobs, tmp_path / "releases")
    assert found(home) == FILES
    assert [path.name for path in (tmp_path / "releases").iterdir()] == [DIGEST]


def test_what_is_missing_or_damaged_is_said_before_anything_is_made(blobs: LocalBlobs, tmp_path: Path) -> None:
    blobs.discard(artifact("labels.txt").sha256)
    with pytest.raises(StoreAbsentError, match=r"labels.txt \(23 bytes\) is not in the store; fetch it"):
        materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")
    blobs.path(artifact("labels.txt").sha256).write_bytes(b"SHARED by both variants")
    with pytest.raises(DamagedError, match=r"labels\.txt is damaged on the disk; discard it"):
        materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")
    assert not (tmp_path / "releases").exists()


def test_a_damaged_release_is_put_right_once_its_blob_is(blobs: LocalBlobs, tmp_path: Path) -> None:
    """A blob and its links are one file: damaged, all are; fetched again, the release still has the damaged one."""
    home = materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")
    (home / "labels.txt").write_bytes(b"SHARED by both variants")
    assert not blobs.verify(artifact("labels.txt").sha256)
    assert blobs.put(FILES["labels.txt"]) == artifact("labels.txt").sha256
    assert found(home)["labels.txt"] == b"SHARED by both variants"
    materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")
    assert found(home)["labels.txt"] == FILES["labels.txt"]


def test_links_that_somebody_put_there_are_not_followed(blobs: LocalBlobs, tmp_path: Path) -> None:
    home = materialise(DIGEST, RELEASE, [], blobs, tmp_path / "releases")
    outside = tmp_path / "outside"
    outside.write_bytes(FILES["labels.txt"])
    (home / "labels.txt").symlink_to(outside)
    materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")
    assert not (home / "labels.txt").is_symlink()
    assert outside.exists()


def test_what_a_kill_left_inside_is_swept_by_the_next_run(blobs: LocalBlobs, tmp_path: Path) -> None:
    home = materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")
    durable.temporary(home).touch()
    durable.temporary(home / "onnx").touch()
    materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")
    assert found(home).keys() == WITHOUT_VARIANTS | {"labels.txt", "onnx/int8/model.onnx"}


def test_a_file_where_a_folder_is_needed_is_an_error(blobs: LocalBlobs, tmp_path: Path) -> None:
    home = materialise(DIGEST, RELEASE, [], blobs, tmp_path / "releases")
    (home / "onnx").touch()
    with pytest.raises(StoreError, match=DIGEST):
        materialise(DIGEST, RELEASE, ["small"], blobs, tmp_path / "releases")


def test_a_release_is_taken_away_once_and_its_blobs_stay(blobs: LocalBlobs, tmp_path: Path) -> None:
    materialise(DIGEST, RELEASE, ["small", "large"], blobs, tmp_path / "releases")
    assert sweep(tmp_path / "releases", frozenset()) == 1
    assert sweep(tmp_path / "releases", frozenset()) == 0
    assert list((tmp_path / "releases").iterdir()) == []
    assert all(blobs.verify(artifact(path).sha256) for path in FILES)


def test_sweeping_leaves_what_is_referenced_and_what_it_does_not_know(blobs: LocalBlobs, tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    assert sweep(releases, frozenset()) == 0
    home = materialise(DIGEST, RELEASE, ["small"], blobs, releases)
    shutil.copytree(home, durable.temporary(releases))
    shutil.copytree(home, releases / ("0" * 64))
    (releases / "README").touch()
    assert sweep(releases, frozenset({DIGEST})) == 2
    assert {path.name for path in releases.iterdir()} == {DIGEST, "README"}


def test_a_digest_names_a_release_and_nothing_else(blobs: LocalBlobs, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no SHA-256 digest"):
        materialise("../outside", RELEASE, [], blobs, tmp_path)
