"""A disk that is full or fails, leftovers, and names that want out."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fleet.controller.blobs.disk import DiskBlobs
from fleet.controller.blobs.safe_path import open_beneath
from fleet.controller.blobs.settings import BlobSettings
from tests.simulators.constants import settings_with

ROOT = Path(__file__).parents[3]
CONTENT = b"content" * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


FULL = """
import hashlib, io, sys
from pathlib import Path
from fleet.controller.blobs.disk import DiskBlobs
from gateway.common.domain.errors import RequestError
from tests.simulators.disk import fill, make, mounted, own_mounts

folder = Path(sys.argv[1])
content = bytes(8 << 20)
digest = hashlib.sha256(content).hexdigest()
(folder / "disk").mkdir()
own_mounts()
make(folder / "image", "ext4")
with mounted(folder / "image", "ext4", folder / "disk"):
    blobs = DiskBlobs(folder / "disk" / "blobs")
    fill(folder / "disk" / "filler", 1 << 20)
    try:
        blobs.put(digest, io.BytesIO(content), len(content))
    except RequestError as error:
        print(error.fault.value, error.message, [file.name for file in (folder / "disk" / "blobs").iterdir()])
    (folder / "disk" / "filler").unlink()
    blobs.put(digest, io.BytesIO(content), len(content))
    print(blobs.stat(digest) == len(content))
"""


def test_a_full_disk_is_told_leaves_nothing_and_heals(tmp_path: Path) -> None:
    """The test runs in a process of its own, which alone sees the file system it mounts."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told, healed = done.stdout.splitlines()
    assert told.startswith("UNAVAILABLE the disk of ")
    assert told.endswith("No space left on device; free space on it or repair it, then try again []")
    assert healed == "True"


def test_what_was_cut_off_long_ago_is_removed_and_what_is_under_way_is_not(tmp_path: Path) -> None:
    old, young = tmp_path / ".incoming-old", tmp_path / ".incoming-young"
    for file in (old, young):
        file.write_bytes(b"x")
    os.utime(old, (1, 1))
    DiskBlobs(tmp_path, settings_with(BlobSettings(), leftover_age_s=60))
    assert (old.exists(), young.exists()) == (False, True)


def test_others_may_read_blobs_and_not_what_is_unfinished(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path)
    blobs.put(DIGEST, io.BytesIO(CONTENT), len(CONTENT))
    assert stat.S_IMODE((tmp_path / DIGEST).stat().st_mode) == 0o644


def test_a_link_in_place_of_a_blob_is_none(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    blobs = DiskBlobs(tmp_path / "blobs")
    (tmp_path / "blobs" / DIGEST).symlink_to(tmp_path / "secret")
    assert blobs.stat(DIGEST) is None


def test_damage_of_another_length_is_mended_by_the_next_put(tmp_path: Path) -> None:
    blobs = DiskBlobs(tmp_path)
    (tmp_path / DIGEST).write_bytes(b"cut")
    blobs.put(DIGEST, io.BytesIO(CONTENT), len(CONTENT))
    assert (tmp_path / DIGEST).read_bytes() == CONTENT


@given(
    st.lists(
        st.sampled_from(["..", ".", "", "a", "link", "/", "b", "/etc", "a\0", "file", ".hidden"]) | st.text(),
        max_size=5,
    )
)
def test_only_files_below_are_ever_opened(tmp_path_factory, parts: list[str]) -> None:
    base = tmp_path_factory.getbasetemp() / "beneath"
    if not base.exists():
        (base / "in" / "a" / "b").mkdir(parents=True)
        for name in ("in/file", "in/a/file", "in/a/b/file", "in/.hidden", "file"):
            (base / name).write_bytes(b"inside" if name.startswith("in/") and "." not in name else b"outside")
        (base / "in" / "link").symlink_to(base)
        (base / "in" / "a" / "link").symlink_to(base / "file")
    found = open_beneath(base / "in", parts)
    if found:
        with found:
            assert found.read() == b"inside"
