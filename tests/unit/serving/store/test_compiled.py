"""Folders of what runtimes compile: one for each content, and not too many."""

from __future__ import annotations

import os
from pathlib import Path

from gateway.serving.store.compiled import KEPT_FOLDERS, make_compiled


def test_the_folders_that_were_not_used_for_the_longest_time_go(tmp_path: Path) -> None:
    names = [str(number) for number in range(KEPT_FOLDERS + 2)]
    for age, name in enumerate(names[:-1]):
        assert make_compiled(tmp_path / "compiled" / name)
        (tmp_path / "compiled" / name / "engine").write_bytes(b"compiled")
        os.utime(tmp_path / "compiled" / name, (age, age))
    assert make_compiled(tmp_path / "compiled" / "1")
    assert make_compiled(tmp_path / "compiled" / names[-1])
    left = {folder.name for folder in (tmp_path / "compiled").iterdir()}
    assert left == {*names[1:]} - {"2"}
    assert (tmp_path / "compiled" / "1" / "engine").read_bytes() == b"compiled"
    assert (tmp_path / "compiled" / "1").stat().st_mode & 0o777 == 0o700


def test_a_clock_that_was_set_back_does_not_remove_the_new_folder(tmp_path: Path) -> None:
    for number in range(KEPT_FOLDERS):
        (tmp_path / str(number)).mkdir()
        os.utime(tmp_path / str(number), (2**32, 2**32))
    assert make_compiled(tmp_path / "new")
    assert (tmp_path / "new").is_dir()
    assert len(list(tmp_path.iterdir())) == KEPT_FOLDERS


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert not make_compiled(tmp_path / "file" / "content")
