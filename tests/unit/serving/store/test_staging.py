"""Folders that appear complete or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.store.staging import ABANDONED_AFTER_S, copy_file, staged_folder, write_text


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fail(target: Path, error: BaseException) -> None:
    with staged_folder(target) as folder:
        (folder / "onnx-fp32").mkdir()
        (folder / "onnx-fp32" / "half").write_bytes(b"half")
        raise error


def test_a_folder_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "models" / "meter" / "1"
    with staged_folder(target) as folder:
        write_text("text", folder / "manifest.toml")
        assert not target.exists()
    assert (target / "manifest.toml").read_text() == "text"
    assert names(target.parent) == ["1"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), MemoryError()])
def test_nothing_is_left_of_a_failure(tmp_path: Path, error: BaseException) -> None:
    target = tmp_path / "models" / "meter" / "1"
    with pytest.raises(type(error)):
        fail(target, error)
    assert names(tmp_path) == []


def test_other_versions_stay_after_a_failure(tmp_path: Path) -> None:
    (tmp_path / "meter" / "1").mkdir(parents=True)
    with pytest.raises(ZeroDivisionError), staged_folder(tmp_path / "meter" / "2"):
        raise ZeroDivisionError
    assert names(tmp_path / "meter") == ["1"]


def test_a_version_that_exists_is_refused_also_if_it_comes_in_between(tmp_path: Path) -> None:
    target = tmp_path / "meter" / "1"
    with pytest.raises(ConfigurationError, match="exists; name another version"), staged_folder(target):
        target.mkdir()
    with pytest.raises(ConfigurationError, match="exists"), staged_folder(target):
        pass
    assert names(target.parent) == ["1"]


def test_copies_name_the_file_of_a_failure(tmp_path: Path) -> None:
    (tmp_path / "pipe").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "pipe")
    for source in (tmp_path / "absent", tmp_path / "pipe"):
        with pytest.raises(OSError, match=str(source)):
            copy_file(source, tmp_path / "copy")
    with pytest.raises(OSError, match="full"):
        write_text("text", Path("/dev/full"))


HANGING = """
import signal, sys
from pathlib import Path
from gateway.serving.store.staging import staged_folder
with staged_folder(Path(sys.argv[1])) as folder:
    (folder / "half").write_bytes(b"half")
    print(folder, flush=True)
    signal.pause()
"""


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_stages_stays(tmp_path: Path) -> None:
    parent = tmp_path / "meter"
    with subprocess.Popen([sys.executable, "-c", HANGING, str(parent / "1")], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        staged = Path(process.stdout.readline().decode().strip())
        os.utime(staged, (0, 0))
        with staged_folder(parent / "2"):
            pass
        assert staged.is_dir()
        process.send_signal(signal.SIGKILL)
    with staged_folder(parent / "3"):
        pass
    assert names(parent) == ["2", "3"]


def test_a_staging_folder_that_is_new_may_be_about_to_be_locked(tmp_path: Path) -> None:
    new = tmp_path / ".tmp-0123456789abcdef"
    new.mkdir()
    with staged_folder(tmp_path / "1"):
        pass
    assert new.is_dir()
    earlier_s = new.stat().st_mtime - ABANDONED_AFTER_S - 1
    os.utime(new, (earlier_s, earlier_s))
    with staged_folder(tmp_path / "2"):
        pass
    assert names(tmp_path) == ["1", "2"]
