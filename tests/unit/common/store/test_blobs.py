"""Blobs by digest: checked, bounded, collected by reference, readable by the group alone."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.files import durable
from gateway.common.store.blobs import LocalBlobs
from gateway.common.store.errors import DamagedError, SpaceError, StoreAbsentError, StoreError
from gateway.common.store.settings import StoreSettings
from tests.simulators.examples import examples

LIMIT_BYTES = 1 << 20


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    made = LocalBlobs(tmp_path / "blobs", StoreSettings(keep_free_bytes=0))
    made.prepare()
    return made


def test_what_is_put_is_there_for_the_group_to_read(blobs: LocalBlobs, tmp_path: Path) -> None:
    digest = blobs.put(b"content")
    path = tmp_path / "blobs" / "sha256" / sha256(b"content")
    assert (digest, blobs.path(digest)) == (path.name, path)
    assert blobs.has(digest, 7)
    assert blobs.verify(digest)
    assert blobs.read(digest, 7) == b"content"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in path.parents[:2]} == {0o750}


def test_what_is_not_there_is_told_apart_from_what_is_damaged(blobs: LocalBlobs) -> None:
    digest = sha256(b"content")
    assert not blobs.has(digest, 7)
    assert not blobs.verify(digest)
    with pytest.raises(StoreAbsentError, match="not in the store; it has to be fetched"):
        blobs.read(digest, LIMIT_BYTES)
    blobs.path(digest).write_bytes(b"Content")
    assert blobs.has(digest, 7)
    assert not blobs.verify(digest)
    with pytest.raises(DamagedError, match="does not match its digest; remove it"):
        blobs.read(digest, LIMIT_BYTES)
    assert blobs.put(b"content") == digest
    assert blobs.verify(digest)
    assert blobs.discard(digest)
    assert not blobs.discard(digest)


def test_no_more_is_read_than_was_allowed(blobs: LocalBlobs) -> None:
    digest = blobs.put(b"x" * 100)
    assert len(blobs.read(digest, 100)) == 100
    with pytest.raises(DamagedError, match="more than the 99 bytes that are read"):
        blobs.read(digest, 99)


@pytest.mark.parametrize("name", ["", "../../etc/passwd", "a" * 63, "A" * 64, "a" * 64 + "\n", "a" * 64 + ".part"])
def test_nothing_but_a_digest_names_a_blob(blobs: LocalBlobs, name: str) -> None:
    with pytest.raises(ValueError, match="is no SHA-256 digest"):
        blobs.path(name)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_only_plain_files_are_blobs(blobs: LocalBlobs, tmp_path: Path, kind: str) -> None:
    digest, elsewhere = sha256(b"content"), tmp_path / "elsewhere"
    elsewhere.write_bytes(b"content")
    if kind == "link":
        blobs.path(digest).symlink_to(elsewhere)
    elif kind == "folder":
        blobs.path(digest).mkdir()
    else:
        os.mkfifo(blobs.path(digest))
    assert not blobs.has(digest, 7)
    assert not blobs.verify(digest)
    with pytest.raises(StoreError):
        blobs.read(digest, LIMIT_BYTES)
    assert blobs.collect(frozenset()).strangers == 1
    assert elsewhere.read_bytes() == b"content"


def test_the_quota_counts_everything_and_says_so(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path, StoreSettings(quota_bytes=20_000, keep_free_bytes=0))
    blobs.prepare()
    blobs.put(b"a" * 10_000)
    used = blobs.usage_bytes()
    assert 10_000 <= used <= 20_000
    with pytest.raises(SpaceError, match=rf"10000 bytes more than the {used} in use exceed the quota; raise quota_b"):
        blobs.put(b"b" * 10_000)
    with pytest.raises(SpaceError):
        blobs.writer(sha256(b"b" * 10_000), 10_000)
    assert blobs.usage_bytes() == used
    assert blobs.collect(frozenset()).freed_bytes == used
    blobs.put(b"b" * 10_000)


def test_others_on_the_disk_keep_their_share(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path, StoreSettings(keep_free_bytes=1 << 60))
    blobs.prepare()
    with pytest.raises(SpaceError, match="0 may be used on this disk; free some, or lower keep_free_bytes"):
        blobs.put(b"content")
    assert list((tmp_path / "sha256").iterdir()) == []


def test_what_a_killed_writer_left_is_gone_when_the_next_begins(blobs: LocalBlobs) -> None:
    left = durable.temporary(blobs.path(sha256(b"")).parent)
    left.write_bytes(b"half")
    blobs.prepare()
    assert not left.exists()


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path / "nowhere")
    assert (blobs.usage_bytes(), blobs.collect(frozenset()).removed) == (0, 0)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "blobs").touch()
    with pytest.raises(StoreError, match=r"blobs/sha256: .*; see that the folder is there and writable"):
        LocalBlobs(tmp_path / "blobs").prepare()


contents = st.dictionaries(st.binary(max_size=50), st.tuples(st.booleans(), st.booleans()), max_size=8)


@given(contents, st.sets(st.sampled_from(["README", "0" * 63, ".hidden", "0" * 64 + ".part.part"])))
@settings(max_examples=examples(60), deadline=None)
def test_collecting_takes_exactly_what_nobody_needs(found: dict[bytes, tuple[bool, bool]], strangers: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        blobs = LocalBlobs(Path(folder), StoreSettings(keep_free_bytes=0))
        blobs.prepare()
        home = Path(folder) / "sha256"
        for content, (is_part, _) in found.items():
            (home / (sha256(content) + (".part" if is_part else ""))).write_bytes(content)
        for name in strangers:
            (home / name).touch()
        needed = {sha256(content) for content, (_, is_needed) in found.items() if is_needed}
        used = blobs.usage_bytes()
        collected = blobs.collect(needed, keep_parts=needed)
        left = {path.name.removesuffix(".part") if path.name not in strangers else "" for path in home.iterdir()}
        assert left - {""} == needed
        assert (collected.removed, collected.strangers) == (len(found) - len(needed), len(strangers))
        assert collected.freed_bytes == used - blobs.usage_bytes()
        assert {path.name for path in home.iterdir()} >= strangers


def test_a_blob_that_a_release_still_links_frees_nothing(blobs: LocalBlobs, tmp_path: Path) -> None:
    digest = blobs.put(b"content")
    os.link(blobs.path(digest), tmp_path / "linked")
    collected = blobs.collect(frozenset())
    assert (collected.removed, collected.freed_bytes) == (1, 0)
