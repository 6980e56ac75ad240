"""A blob on its way in: room first, resumed, and named only when its digest is right."""

from __future__ import annotations

import hashlib
import os
import resource
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.store import blobs as store_blobs
from gateway.common.store.blobs import Download, LocalBlobs
from gateway.common.store.errors import DamagedError, SpaceError, StoreError
from gateway.common.store.settings import StoreSettings
from tests.simulators.constants import settings_with
from tests.simulators.examples import examples

CONTENT = bytes(range(256)) * 400
DIGEST = hashlib.sha256(CONTENT).hexdigest()
SIZE = len(CONTENT)
BEYOND_BYTES = 1 << 61
UNKNOWN_MODE = 1 << 30
"""A mode that fallocate(2) answers with EOPNOTSUPP on every file system."""


@pytest.fixture
def blobs(tmp_path: Path) -> LocalBlobs:
    made = LocalBlobs(tmp_path, settings_with(StoreSettings(keep_free_bytes=0), sync_every_bytes=1000))
    made.prepare()
    return made


def names(blobs: LocalBlobs) -> list[str]:
    return sorted(path.name for path in blobs.path(DIGEST).parent.iterdir())


@given(st.lists(st.integers(0, SIZE), max_size=6), st.lists(st.booleans(), min_size=8, max_size=8))
@settings(max_examples=examples(60), deadline=None)
def test_however_it_is_cut_and_resumed_it_arrives(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], leaves: list[bool]
) -> None:
    blobs = LocalBlobs(
        tmp_path_factory.mktemp("blobs"), settings_with(StoreSettings(keep_free_bytes=0), sync_every_bytes=1000)
    )
    blobs.prepare()
    part = blobs.writer(DIGEST, SIZE)
    for cut, leave in zip([*sorted(cuts), SIZE], leaves, strict=False):
        offset = part.offset
        part.append(CONTENT[offset:cut])
        if leave:
            part.close()
            part = blobs.writer(DIGEST, SIZE)
        assert part.offset == cut
    assert part.finish() == blobs.path(DIGEST)
    assert blobs.read(DIGEST, SIZE) == CONTENT
    assert names(blobs) == [DIGEST]
    assert stat.S_IMODE(blobs.path(DIGEST).stat().st_mode) == 0o640


def test_room_for_all_of_it_is_taken_before_the_first_byte(blobs: LocalBlobs) -> None:
    with blobs.writer(DIGEST, SIZE) as part:
        assert part.offset == 0
        assert blobs.usage_bytes() >= SIZE
        assert blobs.path(DIGEST).with_name(f"{DIGEST}.part").stat().st_size == 0


def test_a_download_that_finds_no_room_leaves_nothing(blobs: LocalBlobs) -> None:
    """The file system refuses to set it aside; the check of free space comes before, and can be overtaken."""
    part = blobs.path(DIGEST).with_name(f"{DIGEST}.part")
    with pytest.raises(SpaceError, match="no room on the disk"):
        Download(part, blobs.path(DIGEST), DIGEST, BEYOND_BYTES, StoreSettings())
    assert names(blobs) == []


def test_a_resumed_download_that_finds_no_room_keeps_what_it_had(blobs: LocalBlobs) -> None:
    part = blobs.path(DIGEST).with_name(f"{DIGEST}.part")
    part.write_bytes(CONTENT[:500])
    with pytest.raises(SpaceError):
        Download(part, blobs.path(DIGEST), DIGEST, BEYOND_BYTES, StoreSettings())
    assert part.read_bytes() == CONTENT[:500]


def test_room_that_ends_on_the_way_is_told_where_none_can_be_set_aside(
    blobs: LocalBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems that know no fallocate(2) are like this."""
    monkeypatch.setattr(store_blobs, "_KEEP_SIZE", UNKNOWN_MODE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with blobs.writer(DIGEST, SIZE) as part, pytest.raises(SpaceError):
            part.append(CONTENT)
        assert part.offset == 1000
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with blobs.writer(DIGEST, SIZE) as part:
        part.append(CONTENT[part.offset :])
        part.finish()
    assert blobs.verify(DIGEST)


def test_more_than_was_signed_is_not_taken(blobs: LocalBlobs) -> None:
    with blobs.writer(DIGEST, SIZE) as part:
        part.append(CONTENT)
        with pytest.raises(DamagedError, match=f"more arrives than the {SIZE} bytes that were signed"):
            part.append(b"x")
        part.finish()
    assert blobs.verify(DIGEST)


def test_less_than_was_signed_is_not_named_but_kept(blobs: LocalBlobs) -> None:
    with blobs.writer(DIGEST, SIZE) as part:
        part.append(CONTENT[:10])
        with pytest.raises(StoreError, match=f"ends after 10 of {SIZE} bytes"):
            part.finish()
    assert names(blobs) == [f"{DIGEST}.part"]


def test_other_bytes_than_were_signed_are_dropped(blobs: LocalBlobs) -> None:
    with blobs.writer(DIGEST, SIZE) as part:
        part.append(b"x" * SIZE)
        with pytest.raises(DamagedError, match=r"what was sent has the digest .*; it is dropped"):
            part.finish()
    assert names(blobs) == []


def test_a_part_that_rotted_is_noticed_in_the_end(blobs: LocalBlobs) -> None:
    part = blobs.path(DIGEST).with_name(f"{DIGEST}.part")
    part.write_bytes(b"\0" * 500)
    with blobs.writer(DIGEST, SIZE) as part:
        part.append(CONTENT[500:])
        with pytest.raises(DamagedError):
            part.finish()
    assert names(blobs) == []


def test_a_sender_that_cannot_resume_begins_again(blobs: LocalBlobs) -> None:
    with blobs.writer(DIGEST, SIZE) as part:
        part.append(CONTENT[:1234])
        part.restart()
        assert part.offset == 0
        assert blobs.usage_bytes() >= SIZE
        part.append(CONTENT)
        part.finish()
    assert blobs.verify(DIGEST)


def test_a_part_longer_than_what_was_signed_begins_again(blobs: LocalBlobs) -> None:
    blobs.path(DIGEST).with_name(f"{DIGEST}.part").write_bytes(b"x" * (SIZE + 1))
    with blobs.writer(DIGEST, SIZE) as part:
        assert part.offset == 0


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_part_that_is_no_plain_file_is_refused(blobs: LocalBlobs, tmp_path: Path, kind: str) -> None:
    part, elsewhere = blobs.path(DIGEST).with_name(f"{DIGEST}.part"), tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    if kind == "link":
        part.symlink_to(elsewhere)
    elif kind == "pipe":
        os.mkfifo(part)
    else:
        part.mkdir()
    with pytest.raises(StoreError, match=r"\.part: "):
        blobs.writer(DIGEST, SIZE)
    assert elsewhere.read_bytes() == b"precious"


def test_nothing_at_all_is_a_blob_too(blobs: LocalBlobs) -> None:
    empty = hashlib.sha256(b"").hexdigest()
    with blobs.writer(empty, 0) as part:
        part.finish()
        part.close()
    assert blobs.read(empty, 0) == b""
