"""Places of private copies, and what is left of those whose process was killed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import Artifact
from gateway.common.files.locks import folder_in_use
from gateway.common.store import private_copies
from gateway.common.store.private_copies import PREFIX, choose_place

CONTENT = b"weights"


def artifact(path: str = "sub/model.onnx", content: bytes = CONTENT) -> Artifact:
    return Artifact(path, hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a release with one file; copies go to `tmp_path/run`."""
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("RUNTIME_DIRECTORY", f"{tmp_path / 'run'}:/another")
    (tmp_path / "release" / "sub").mkdir(parents=True)
    (tmp_path / "release" / "sub" / "model.onnx").write_bytes(CONTENT)
    return tmp_path / "release"


def test_copies_are_private_and_go_when_the_session_is_open(folder: Path) -> None:
    with private_copies.private_copies([artifact()], folder) as copies:
        assert copies.parent == folder.parent / "run"
        assert copies.stat().st_mode & 0o777 == 0o700
        assert (copies / "sub" / "model.onnx").read_bytes() == CONTENT
    assert list((folder.parent / "run").iterdir()) == []


def test_what_a_runtime_refuses_is_named_where_people_find_it(folder: Path) -> None:
    with (
        pytest.raises(VariantError, match=f"^{folder}/sub/model.onnx is no graph; export it again$") as refused,
        private_copies.private_copies([artifact()], folder) as copies,
    ):
        raise VariantError(f"{copies}/sub/model.onnx is no graph", remedy="export it again", transient=True)
    assert refused.value.transient


@pytest.mark.parametrize("ill", ["other bytes", "gone", "a pipe"])
def test_what_cannot_be_copied_as_named_is_refused_and_leaves_nothing(folder: Path, ill: str) -> None:
    file = folder / "sub" / "model.onnx"
    file.unlink()
    if ill == "other bytes":
        file.write_bytes(b"another")
    if ill == "a pipe":
        os.mkfifo(file)
    with (
        pytest.raises(VariantError, match="changed since it was read; reload the models") as refused,
        private_copies.private_copies([artifact()], folder),
    ):
        raise AssertionError("nothing is lent")
    assert refused.value.transient
    assert list((folder.parent / "run").iterdir()) == []


def test_no_more_is_copied_than_the_size_that_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that grows must not fill the memory."""
    copied: list[int] = []
    file = folder / "sub" / "model.onnx"
    file.write_bytes(CONTENT * 1000)
    remove = private_copies.shutil.rmtree

    def measured(place: Path, **options: bool) -> None:
        copied.extend(made.stat().st_size for made in place.rglob("*.onnx"))
        remove(place, **options)

    monkeypatch.setattr(private_copies.shutil, "rmtree", measured)
    with pytest.raises(VariantError, match="changed since"), private_copies.private_copies([artifact()], folder):
        raise AssertionError("nothing is lent")
    assert copied == [len(CONTENT) + 1]


def test_copies_that_a_killed_process_left_are_removed(folder: Path) -> None:
    run = folder.parent / "run"
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    left, of_another_container, ours = (
        run / f"{PREFIX}{name}" for name in (f"{done.pid}-x", f"{done.pid}-y", os.getpid())
    )
    for copies in (left, of_another_container, ours):
        copies.mkdir()
        os.utime(copies, (0, 0))
    with folder_in_use(of_another_container), private_copies.private_copies([artifact()], folder):
        assert not left.exists()
        assert of_another_container.exists()
        assert ours.exists()


def test_what_would_take_much_of_the_memory_lies_on_the_disk(tmp_path: Path) -> None:
    memory, disk = tmp_path / "memory", tmp_path / "disk"
    memory.mkdir()
    assert choose_place(100, 400, [tmp_path / "absent", memory], disk) == memory
    assert choose_place(101, 400, [memory], disk) == disk
    assert choose_place(100, 0, [memory], disk) == disk
    assert choose_place(2**62, 2**64, [memory], disk) == disk  # more than the folder has room for
