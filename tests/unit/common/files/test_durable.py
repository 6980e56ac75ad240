"""Files that are whole or not there, folders that are there, nothing left over."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from gateway.common.files import durable
from gateway.common.store.errors import SpaceError, StoreError, store_errors


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_is_written_and_replaced_with_the_mode_that_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "file"
    before = os.umask(0o077)
    try:
        durable.write_file(file, b"one")
        assert (file.read_bytes(), mode(file)) == (b"one", 0o640)
        durable.write_file(file, b"", 0o600)
        assert (file.read_bytes(), mode(file)) == (b"", 0o600)
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_is_replaced_and_what_it_points_to_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"precious")
    (tmp_path / "file").symlink_to("elsewhere")
    durable.write_file(tmp_path / "file", b"new")
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "file"
    durable.write_file(file, b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(SpaceError, match=r"file: no room on the disk: .*; free some"), store_errors(file):
            durable.write_file(file, b"new" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_a_folder_in_the_way_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file" / "full").mkdir(parents=True)
    with pytest.raises(StoreError, match="see that the folder is there and writable"), store_errors(tmp_path):
        durable.write_file(tmp_path / "file", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_folders_are_made_with_all_they_lie_in(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        durable.make_folder(tmp_path / "a" / "b")
        durable.make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert (mode(tmp_path / "a"), mode(tmp_path / "a" / "b")) == (0o750, 0o750)


def test_files_and_trees_are_taken_away_once(tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").touch()
    (tmp_path / "file").touch()
    assert durable.remove_tree(tmp_path / "tree")
    assert not durable.remove_tree(tmp_path / "tree")
    assert durable.remove_file(tmp_path / "file")
    assert not durable.remove_file(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_what_killed_writers_left_is_swept_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "folder").mkdir(parents=True)
    (outside / "folder" / "precious").touch()
    store = tmp_path / "store"
    store.mkdir()
    (store / "kept").touch()
    durable.temporary(store).touch()
    durable.temporary(store).symlink_to(outside / "folder")
    half = durable.temporary(store)
    half.mkdir()
    (half / "link").symlink_to(outside / "folder")
    assert durable.sweep(store) == 3
    assert [entry.name for entry in store.iterdir()] == ["kept"]
    assert (outside / "folder" / "precious").exists()
