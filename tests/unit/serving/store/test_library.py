"""The model directory: what is whole is found, what is not is refused with the reason, the others are found still."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release import NO_VERSION, Release
from gateway.common.store.settings import LibrarySettings
from gateway.serving.store.library import scan, scan_model, scan_version
from tests.simulators.constants import settings_with

REPOSITORY_MODELS = Path(__file__).parents[4] / "models"
CONTENT = b"\x3a\x05\x12\x03abc"
"""An ONNX model: a graph called abc, and no more."""
MANIFEST = """\
schema = 1
name = "{name}"
version = "{version}"
[[input]]
name = "x"
datatype = "FP32"
shape = [-1, 1]
[[output]]
name = "y"
datatype = "FP32"
shape = [-1, 1]
[[variant]]
name = "a"
runtime = "onnx"
precision = "fp32"
artifacts = [{{path = "{path}", sha256 = "{sha256}", bytes = {size}}}]
{more}
"""


def write(root: Path, name: str = "m", version: str = "1", **changes: object) -> Path:
    """Write a good release, but for `changes` to its manifest; return its folder."""
    folder = root / name / version
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "w.onnx").write_bytes(CONTENT)
    fields = {
        "name": name,
        "version": version,
        "path": "w.onnx",
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "size": len(CONTENT),
        "more": "",
    }
    (folder / "manifest.toml").write_text(MANIFEST.format(**{**fields, **changes}), "utf-8")
    return folder


def only(root: Path, settings: LibrarySettings | None = None) -> Release:
    (release,) = scan(root, settings)
    return release


def problem(root: Path, settings: LibrarySettings | None = None) -> str:
    """Return why the release `m` is refused; `good`, written next to it, is served all the same."""
    write(root, "good")
    releases = {release.name: release for release in scan(root, settings)}
    assert releases["good"].problem == ""
    assert releases["good"].manifest is not None
    assert releases["m"].manifest is None
    assert releases["m"].bare is None
    return releases["m"].problem


def test_the_repositorys_own_models_are_whole_and_recipes_are_no_model() -> None:
    releases = scan(REPOSITORY_MODELS)
    assert [(release.name, release.version, release.problem) for release in releases] == [
        ("activity", "1", ""),
        ("meter-reader", "1", ""),
    ]


def test_versions_are_found_oldest_first(tmp_path: Path) -> None:
    for version in ("10", "9", "v1"):
        write(tmp_path, version=version)
    assert [release.version for release in scan(tmp_path)] == ["v1", "9", "10"]


def test_a_digest_stays_until_something_changes(tmp_path: Path) -> None:
    folder = write(tmp_path)
    before = only(tmp_path).digest
    assert only(tmp_path).digest == before
    (folder / "w.onnx").write_bytes(CONTENT.replace(b"abc", b"xyz"))
    write(tmp_path, sha256=hashlib.sha256(CONTENT).hexdigest(), more="# a comment")
    assert only(tmp_path).digest != before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"more": "colour = 1"}, "manifest.toml:17: variant[0].colour: unknown key"),
        ({"path": "gone.onnx"}, "gone.onnx is missing"),
        ({"sha256": "0" * 64}, "the file is not the one released"),
        ({"size": 8}, "has 7 bytes, the manifest says 8"),
        ({"name": "other"}, "name: says 'other', but the folder is called 'm'"),
        ({"version": "2"}, "version: says '2', but the folder is called '1'"),
        ({"path": "../../secret"}, "must be a path inside the model's folder"),
        ({"path": "/etc/passwd"}, "must be a path inside the model's folder"),
        ({"path": "."}, "is missing"),
        ({"path": "x" * 300}, "cannot be read"),
        ({"more": "[golden]\nfile = 'g.npz'\nsha256 = '" + "0" * 64 + "'"}, "g.npz is missing"),
        ({"more": "= 3"}, "manifest.toml:17: not valid TOML"),
        ({"more": "x = " + "[" * 100_000}, "not valid TOML"),
    ],
)
def test_a_broken_manifest_is_refused_with_file_and_place(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    folder = write(tmp_path, "m", "1")
    fields = {"name": "m", "version": "1", **changes}
    text = MANIFEST.format(
        **{"path": "w.onnx", "sha256": hashlib.sha256(CONTENT).hexdigest(), "size": 7, "more": "", **fields}
    )
    (folder / "manifest.toml").write_text(text, "utf-8")
    found = problem(tmp_path)
    assert words in found
    assert str(folder) in found


def test_a_manifest_that_is_no_text(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "manifest.toml").write_bytes(b"# \xff\xfe")
    assert "is not UTF-8" in problem(tmp_path)


def test_a_manifest_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path)
    with (folder / "manifest.toml").open("a") as file:
        file.write("# " + "x" * 2000)
    assert "has more than 1000 bytes" in problem(tmp_path, settings_with(LibrarySettings(), manifest_limit_bytes=1000))


def test_a_manifest_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "m" / "1" / "manifest.toml")
    assert "cannot be read: it is no plain file" in problem(tmp_path)


@pytest.mark.parametrize(
    ("file", "runtime"), [("model.onnx", "onnx"), ("model.tflite", "litert"), ("model.xml", "openvino")]
)
@pytest.mark.parametrize("place", ["", "1", "7"])
def test_bare_models_of_three_kinds(tmp_path: Path, file: str, runtime: str, place: str) -> None:
    folder = tmp_path / "m" / place
    folder.mkdir(parents=True)
    (folder / file).write_bytes(CONTENT)
    release = only(tmp_path)
    assert (release.name, release.version, release.problem) == ("m", place or "1", "")
    assert release.bare is not None
    assert release.bare.runtime == runtime
    assert [(a.path, a.size_bytes) for a in release.bare.artifacts] == [(file, 7)]
    assert release.bare.artifacts[0].sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_the_weights_beside_a_model_xml_belong_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "model.xml").write_bytes(CONTENT)
    (folder / "model.bin").write_bytes(b"one")
    before = only(tmp_path)
    assert before.bare is not None
    assert [artifact.path for artifact in before.bare.artifacts] == ["model.xml", "model.bin"]
    (folder / "model.bin").write_bytes(b"two")
    assert only(tmp_path).digest != before.digest


def test_a_manifest_wins_over_a_bare_file_beside_it(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "model.onnx").write_bytes(CONTENT)
    served, left = scan(tmp_path)
    assert served.manifest is not None
    assert (left.name, left.version) == ("m/1/model.onnx", NO_VERSION)
    assert "list it in manifest.toml" in left.problem


def test_two_bare_files_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    for file in ("model.onnx", "model.tflite"):
        (tmp_path / "m" / file).write_bytes(CONTENT)
    assert "holds several models: model.onnx, model.tflite" in problem(tmp_path)


def test_a_bare_file_beside_a_version_1_is_refused_once(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "m" / "model.onnx").write_bytes(CONTENT)
    assert len(scan_model(tmp_path, "m")) == 1
    assert "and a folder 1" in problem(tmp_path)


def test_a_manifest_without_a_version_folder_says_where_to_put_it(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "manifest.toml").rename(tmp_path / "m" / "manifest.toml")
    assert "m/<version>" in problem(tmp_path)


def test_an_empty_version_folder_is_refused_and_other_folders_are_no_versions(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "docs").mkdir()
    assert "holds no model" in problem(tmp_path)


def test_hidden_folders_and_files_are_no_models(tmp_path: Path) -> None:
    write(tmp_path, ".trash")
    write(tmp_path, "__pycache__")
    (tmp_path / "README.md").write_text("hello")
    assert scan(tmp_path) == ()


def test_a_linked_model_and_a_linked_version_are_followed_a_loop_is_not(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", "m")
    root = tmp_path / "root"
    (root / "m").mkdir(parents=True)
    (root / "m" / "1").symlink_to(elsewhere)
    (root / "linked").symlink_to(elsewhere.parent)
    (root / "loop").symlink_to(root / "loop")
    (root / "m" / "2").symlink_to(root)
    found = {(release.name, release.version): release.problem for release in scan(root)}
    assert found["m", "1"] == ""
    assert "folder is called 'linked'" in found["linked", "1"]
    assert "holds no model" in found["m", "2"]
    assert "a link to nothing" in found["loop", NO_VERSION]
    assert len(found) == 4


def test_a_dangling_link_is_a_missing_artifact(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "w.onnx").unlink()
    (folder / "w.onnx").symlink_to(tmp_path / "nowhere")
    assert "w.onnx is missing" in problem(tmp_path)


def test_a_device_behind_an_artifact_is_not_read(tmp_path: Path) -> None:
    folder = write(tmp_path)
    (folder / "w.onnx").unlink()
    (folder / "w.onnx").symlink_to("/dev/zero")
    assert "w.onnx is missing" in problem(tmp_path)


def test_too_many_versions_refuse_that_model_only(tmp_path: Path) -> None:
    for version in ("1", "2", "3"):
        write(tmp_path, version=version)
    assert "holds 3 folders, at most 2 are read" in problem(
        tmp_path, settings_with(LibrarySettings(), versions_limit=2)
    )


def test_a_folder_that_cannot_be_looked_through_refuses_that_model_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    listing = Path.iterdir

    def refusing(folder: Path) -> object:
        if folder.name == "m":
            raise PermissionError(13, "Permission denied", str(folder))
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", refusing)  # tests may run as root, which no mode bits stop
    assert problem(tmp_path).startswith(f"{tmp_path / 'm'}: cannot be read: Permission denied; let the gateway's user")


@pytest.mark.parametrize("name", ["-m", "m m", "ü", "x" * 129])
def test_a_folder_whose_name_cannot_name_a_model(tmp_path: Path, name: str) -> None:
    write(tmp_path, name)
    assert "cannot name a model or version" in only(tmp_path).problem


def test_a_name_that_is_no_text_can_still_be_shown(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe/1"
    os.makedirs(folder)  # noqa: PTH103  Path cannot hold these bytes as written
    release = only(tmp_path)
    assert release.problem.encode("utf-8")
    assert release.name == "\\udcff\\udcfe"


def test_an_absent_root_is_the_operators_mistake_an_absent_model_nobodys(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--models"):
        scan(tmp_path / "nowhere")
    assert scan_model(tmp_path, "nowhere") == ()


def test_one_version_can_be_looked_at_alone(tmp_path: Path) -> None:
    assert scan_version(write(tmp_path)).manifest is not None
    problem = scan_version(tmp_path / "m" / "2").problem
    assert "No such file or directory; check that it is there" in problem
    assert "Errno" not in problem


def test_a_root_that_the_system_refuses_is_the_operators_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: File name too long"):
        scan(tmp_path / ("x" * 300))

    def refuse(_folder: Path) -> Iterator[Path]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(ConfigurationError, match="cannot be read: Permission denied"):
        scan(tmp_path)
