"""Files as users have them: every layout is served, all that a model refers to belongs to it, nothing is invisible."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release import NO_VERSION, Release
from gateway.common.store.settings import LibrarySettings
from gateway.serving.store.library import scan, scan_model, scan_version
from gateway.serving.store.references import references
from gateway.serving.store.releases import changed_file, copy_listed
from tests.simulators.constants import settings_with
from tests.simulators.triton_examples import DENSENET, write_external

CONTENT = b"\x3a\x05\x12\x03abc"
"""An ONNX model: a graph called abc, and no more."""


def put(file: Path, content: bytes = CONTENT) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file


def pointing(file: Path, location: str) -> Path:
    """Write a model that refers to any location, which need not be there."""
    tensor = TensorProto(name="w", data_type=1, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    graph = helper.make_graph([], "g", [], [], [tensor])
    return put(file, helper.make_model(graph).SerializeToString())


def found(root: Path) -> dict[tuple[str, str], str]:
    return {(release.name, release.version): release.problem for release in scan(root)}


def served(root: Path) -> Release:
    """Return the only release that is not refused."""
    (release,) = (release for release in scan(root) if not release.problem)
    return release


def paths(release: Release) -> list[str]:
    assert release.bare is not None
    return [artifact.path for artifact in release.bare.artifacts]


@pytest.mark.parametrize("suffix", [".onnx", ".tflite", ".xml"])
@pytest.mark.parametrize(
    ("place", "version"), [("x", "1"), ("x/anything", "1"), ("x/1/model", "1"), ("x/1/anything", "1"), ("x/7/y", "7")]
)
def test_a_model_is_served_wherever_users_put_it(tmp_path: Path, place: str, version: str, suffix: str) -> None:
    file = put(tmp_path / f"{place}{suffix}")
    weights = put(file.with_suffix(".bin"), b"weights") if suffix == ".xml" else None
    (release,) = scan(tmp_path)
    assert (release.name, release.version, release.problem) == ("x", version, "")
    assert paths(release) == [file.name, *([weights.name] if weights else [])]
    assert release.folder == file.parent
    assert [one.digest for one in scan_model(tmp_path, "x")] == [release.digest]


def test_files_side_by_side_are_models_of_their_own(tmp_path: Path) -> None:
    put(tmp_path / "a.onnx")
    put(tmp_path / "b.tflite")
    put(tmp_path / "c.xml")
    put(tmp_path / "c.bin")
    assert found(tmp_path) == {("a", "1"): "", ("b", "1"): "", ("c", "1"): ""}


@pytest.mark.parametrize("place", ["x", "x/1", "."])
def test_two_models_in_one_place_are_refused_by_name(tmp_path: Path, place: str) -> None:
    names = ("x.onnx", "x.tflite") if place == "." else ("a.onnx", "b.onnx")
    for name in names:
        put(tmp_path / place / name)
    ((key, problem),) = found(tmp_path).items()
    assert key == ("x", "1")
    assert f"holds several models: {names[0]}, {names[1]}; keep one" in problem


def test_among_several_the_one_called_model_is_served_and_the_others_are_told(tmp_path: Path) -> None:
    for name in ("model.onnx", "model_fp16.onnx", "model_quantized.onnx"):
        put(tmp_path / "x" / name)
    assert paths(served(tmp_path)) == ["model.onnx"]
    told = found(tmp_path)["x/model_fp16.onnx", NO_VERSION]
    assert "another model of this folder is; give it a folder of its own" in told
    assert "model_quantized.onnx" in told


# ---- what a model refers to -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["x.onnx", "x/x.onnx", "x/1/model.onnx"])
@pytest.mark.parametrize("location", ["weights.bin", "data/weights.bin"])
def test_external_data_belongs_to_the_model(tmp_path: Path, place: str, location: str) -> None:
    file = tmp_path / place
    (file.parent / location).parent.mkdir(parents=True, exist_ok=True)
    write_external(file, 1.0, location)
    before = served(tmp_path)
    assert paths(before) == [file.name, location]
    weights = file.parent / location
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    after = served(tmp_path)
    assert after.digest != before.digest
    assert before.bare is not None
    assert after.bare is not None
    assert before.bare.artifacts != after.bare.artifacts  # the verdict's key, and what is checked at open


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("/etc/passwd", "refers to '/etc/passwd', which is no path inside its folder"),
        ("../secret", "refers to '../secret', which is no path inside its folder"),
        ("a/../../secret", "which is no path inside its folder"),
        ("", "which is no path inside its folder"),
        ("gone.bin", "refers to gone.bin, which is missing; put it next to the model"),
        (".", "which is no path inside its folder"),
        ("*/_ORT_MEM_ADDR_/*", "which is missing"),
    ],
)
def test_a_reference_out_of_the_folder_or_to_nothing_is_refused(tmp_path: Path, location: str, words: str) -> None:
    put(tmp_path / "secret", b"not for models")
    file = pointing(tmp_path / "root" / "x" / "x.onnx", location)
    problem = found(tmp_path / "root")["x", "1"]
    assert words in problem
    assert str(file) in problem


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path, link: str) -> None:
    put(tmp_path / "outside" / "w.bin")
    root = tmp_path / "root"
    pointing(root / "x" / "x.onnx", "w.bin" if link == "file" else "data/w.bin")
    name, target = ("w.bin", "../../outside/w.bin") if link == "file" else ("data", "../../outside")
    (root / "x" / name).symlink_to(target)
    assert "a link that leads out of the model's folder" in found(root)["x", "1"]


def test_a_damaged_model_is_refused_since_its_references_are_not_known(tmp_path: Path) -> None:
    put(tmp_path / "x.onnx", b"<html>")
    assert "not an ONNX file, or a damaged one: at byte" in found(tmp_path)["x", "1"]


@pytest.mark.parametrize("suffix", [".onnx", ".tflite", ".xml"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; compare its size"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n", "is a Git LFS pointer, not the model"),
    ],
)
def test_a_file_without_a_model_in_it_is_refused_with_a_remedy(
    tmp_path: Path, suffix: str, content: bytes, words: str
) -> None:
    put(tmp_path / f"x{suffix}", content)
    put(tmp_path / "x.bin", b"weights")
    refused = found(tmp_path)
    assert f"{tmp_path / f'x{suffix}'}: {words}" in refused["x", "1"]
    assert "copy it here again" in refused["x", "1"]
    others = [problem for key, problem in refused.items() if key != ("x", "1")]
    assert ["which is refused; see there" in problem for problem in others] == [suffix == ".xml"]


def test_a_compiled_model_is_refused_since_it_names_its_file_elsewhere(tmp_path: Path) -> None:
    node = helper.make_node("EPContext", [], [], domain="com.microsoft", embed_mode=0, ep_cache_context="../engine.bin")
    put(tmp_path / "x.onnx", helper.make_model(helper.make_graph([node], "g", [], [])).SerializeToString())
    assert "holds a compiled part (com.microsoft::EPContext)" in found(tmp_path)["x", "1"]


MANIFEST = """\
schema = 1
name = "m"
version = "1"
input = [{name = "x", datatype = "FP32", shape = [-1, 64]}]
output = [{name = "y", datatype = "FP32", shape = [-1, 64]}]
[[variant]]
name = "a"
runtime = "%s"
precision = "fp32"
artifacts = [%s]
"""


def artifact(file: Path) -> str:
    content = file.read_bytes()
    return f'{{path = "{file.name}", sha256 = "{hashlib.sha256(content).hexdigest()}", bytes = {len(content)}}}'


@pytest.mark.parametrize(
    ("runtime", "name", "other"), [("onnx", "m.onnx", "weights.bin"), ("openvino", "m.xml", "m.bin")]
)
def test_a_manifest_must_list_what_its_models_refer_to(tmp_path: Path, runtime: str, name: str, other: str) -> None:
    folder = tmp_path / "m" / "1"
    file = write_external(folder / name, 1.0) if runtime == "onnx" else put(folder / name)
    if runtime == "openvino":
        put(folder / other, b"weights")
    (folder / "manifest.toml").write_text(MANIFEST % (runtime, artifact(file)))
    problem = scan_version(folder).problem
    line = artifact(folder / other)
    assert f"variant a: {name} refers to {other}, which is not among the artifacts; add {line}" in problem
    (folder / "manifest.toml").write_text(MANIFEST % (runtime, f"{artifact(file)}, {line}"))
    whole = scan_version(folder)
    assert (whole.problem, [release.name for release in scan(tmp_path)]) == ("", ["m"])
    assert whole.manifest is not None
    (folder / other).write_bytes(b"other weights")
    assert changed_file(whole.manifest, whole.manifest.variants[0], folder) == folder / other


@pytest.mark.parametrize("can_link", [True, False])
def test_only_listed_files_are_there_when_a_release_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    write_external(tmp_path / "root" / "x.onnx", 1.0)
    put(tmp_path / "root" / "secret.bin")
    if not can_link:
        monkeypatch.setattr(Path, "hardlink_to", _refuse)
    listed = copy_listed(served(tmp_path / "root"), tmp_path)
    assert listed.folder == tmp_path
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["root", "weights.bin", "x.onnx"]
    assert (tmp_path / "weights.bin").read_bytes() == (tmp_path / "root" / "weights.bin").read_bytes()


def _refuse(_place: Path, _target: Path) -> None:
    raise OSError(18, "Invalid cross-device link")


def test_a_file_that_cannot_be_copied_names_the_remedy(tmp_path: Path) -> None:
    put(tmp_path / "root" / "x.onnx")
    release = served(tmp_path / "root")
    (tmp_path / "root" / "x.onnx").unlink()
    with pytest.raises(ConfigurationError, match="TMPDIR"):
        copy_listed(release, tmp_path)


# ---- Triton's config.pbtxt ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("place", ["model.onnx", "1/model.onnx", "3/any.onnx"])
def test_a_configuration_of_tritons_belongs_to_the_bare_models_of_its_folder(tmp_path: Path, place: str) -> None:
    put(tmp_path / "densenet_onnx" / place)
    config = put(tmp_path / "densenet_onnx" / "config.pbtxt", DENSENET.encode())
    assert "the label file densenet_labels.txt is missing" in found(tmp_path)["densenet_onnx", ""]
    labels = put(config.with_name("densenet_labels.txt"), b"cat\ndog\r\n")
    (release,) = scan(tmp_path)
    assert release.labels == ("cat", "dog")
    assert release.config is not None
    digests = {release.digest}
    for file in (labels, config):
        file.write_bytes(file.read_bytes() + b"\n")
        digests.add(served(tmp_path).digest)
    assert len(digests) == 3


def test_versions_that_the_policy_leaves_out_are_no_error(tmp_path: Path) -> None:
    for version in ("1", "2", "10"):
        put(tmp_path / "m" / version / "net.onnx")
        put(tmp_path / "m" / version / "other.onnx")
    put(tmp_path / "m" / "0" / "torn.onnx")
    put(
        tmp_path / "m" / "config.pbtxt",
        b"version_policy { latest { num_versions: 2 } } default_model_filename: 'net.onnx'",
    )
    releases = {release.version: release for release in scan_model(tmp_path, "m") if "/" not in release.version}
    assert set(releases) == {"2", "10"}
    for release in releases.values():
        assert (release.problem, release.remarks) == ("", ("version_policy in config.pbtxt leaves out version 0, 1",))


@pytest.mark.parametrize(
    ("text", "version", "words"),
    [
        ("model_operations { }", "", "model_operations: is not offered here"),
        ("backend: 'openvino'", "1", "names a backend for openvino files, but the model is one for onnx"),
        ("default_model_filename: 'net.onnx'", "1", "holds no net.onnx, which default_model_filename names"),
    ],
)
def test_a_configuration_that_cannot_be_followed_refuses_the_model(
    tmp_path: Path, text: str, version: str, words: str
) -> None:
    put(tmp_path / "m" / "1" / "model.onnx")
    put(tmp_path / "m" / "config.pbtxt", text.encode())
    assert words in found(tmp_path)["m", version]
    assert words in scan_version(tmp_path / "m" / "1").problem


@pytest.mark.parametrize("place", ["config.pbtxt", "m/1/config.pbtxt"])
def test_a_configuration_where_nothing_reads_it_is_told(tmp_path: Path, place: str) -> None:
    put(tmp_path / "m" / "1" / "model.onnx")
    put(tmp_path / place, b"max_batch_size: 8")
    assert "is not read: it describes bare models" in found(tmp_path)[place, NO_VERSION]


@pytest.mark.parametrize("name", [".onnx", "a/.onnx", "m.onnx"])
def test_a_file_that_a_runtime_opens_is_read_whatever_its_stem(tmp_path: Path, name: str) -> None:
    pointing(tmp_path / name, "../w.bin")
    with pytest.raises(ConfigurationError, match="no path inside its folder"):
        references(tmp_path, name)


def test_a_model_that_refers_to_itself_is_listed_once(tmp_path: Path) -> None:
    pointing(tmp_path / "x.onnx", "./x.onnx")
    assert paths(served(tmp_path)) == ["x.onnx"]


# ---- nothing is invisible -------------------------------------------------------------------------------------------
def no_weights(root: Path) -> None:
    put(root / "x" / "weights.pt")


def pipe_in_folder(root: Path) -> None:
    (root / "x").mkdir()
    os.mkfifo(root / "x" / "model.onnx")


STRAY: dict[str, tuple[Callable[[Path], object], tuple[str, str], str]] = {
    "an empty folder": (lambda root: (root / "x").mkdir(), ("x", NO_VERSION), "holds no model; put a .onnx"),
    "a folder of other files": (no_weights, ("x", NO_VERSION), "(there: weights.pt)"),
    "an empty version": (lambda root: (root / "x" / "1").mkdir(parents=True), ("x", "1"), "holds no model; put"),
    "a file of another kind": (lambda root: put(root / "x.dat"), ("x.dat", NO_VERSION), "belongs to no model here"),
    "a file of PyTorch": (lambda root: put(root / "x.pt"), ("x.pt", NO_VERSION), "yolo export model=x.pt format=onnx"),
    "a folder of Keras": (
        lambda root: put(root / "x" / "m.keras"),
        ("x", NO_VERSION),
        ".export('m.onnx', format='onnx')",
    ),
    "a SavedModel": (
        lambda root: put(root / "x" / "saved_model.pb"),
        ("x", NO_VERSION),
        "tf2onnx.convert --saved-model",
    ),
    "a pickle in a version": (lambda root: put(root / "x" / "1" / "m.pkl"), ("x", "1"), "skl2onnx.to_onnx(model, "),
    "weights without a model": (lambda root: put(root / "x.bin"), ("x.bin", NO_VERSION), "belongs to no model here"),
    "a pipe": (lambda root: os.mkfifo(root / "x.onnx"), ("x", "1"), "it is no plain file; put a plain file there"),
    "a folder of a pipe": (pipe_in_folder, ("x", "1"), "model.onnx: is no plain file, or a link to nothing"),
    "capitals": (lambda root: put(root / "x.ONNX"), ("x.ONNX", NO_VERSION), "rename it to x.onnx"),
    "capitals in a folder": (lambda root: put(root / "x" / "M.Onnx"), ("x", NO_VERSION), "rename it to M.onnx"),
    "capitals in a version": (lambda root: put(root / "x" / "1" / "M.TFLITE"), ("x", "1"), "rename it to M.tflite"),
    "a line end": (lambda root: put(root / "a\nb.onnx"), ("a\\nb", "1"), "/a\\nb.onnx: 'a\\nb' cannot name"),
    "a long name": (lambda root: put(root / f"{'x' * 129}.onnx"), ("x" * 129, "1"), ".onnx: 'xxx"),
    "a dangling link": (lambda root: (root / "x").symlink_to("gone"), ("x", NO_VERSION), "a link to nothing"),
    "a name that names no model": (lambda root: put(root / "my model.onnx"), ("my model", "1"), "cannot name a model"),
}


@pytest.mark.parametrize("kind", STRAY)
def test_what_is_not_served_stands_there_with_the_reason(tmp_path: Path, kind: str) -> None:
    make, key, words = STRAY[kind]
    put(tmp_path / "good.onnx")
    make(tmp_path)
    told = found(tmp_path)
    assert told.pop(("good", "1")) == ""
    assert list(told) == [key]
    assert words in told[key]


def test_a_file_beside_weights_in_their_folder_is_listed(tmp_path: Path) -> None:
    (tmp_path / "x" / "1" / "weights").mkdir(parents=True)
    write_external(tmp_path / "x" / "1" / "model.onnx", 1.0, "weights/w.bin")
    put(tmp_path / "x" / "1" / "weights" / "old.bin")
    told = found(tmp_path)
    assert told.pop(("x", "1")) == ""
    assert list(told) == [("x/1/weights/old.bin", NO_VERSION)]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda place: place.symlink_to("gone")])
@pytest.mark.parametrize("name", ["config.pbtxt", "1/manifest.toml"])
def test_a_description_that_is_no_file_is_not_passed_over(
    tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    put(tmp_path / "x" / "1" / "model.onnx")
    make(tmp_path / "x" / name)
    ((_, problem),) = found(tmp_path).items()
    assert problem.startswith(f"{tmp_path / 'x' / name}: cannot be read: ")
    assert "put a plain file there" in problem


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("net.bin", "default_model_filename 'net.bin' has no suffix of a model; rename it and the field"),
        ("net.ONNX", "rename it to net.onnx"),
    ],
)
def test_a_named_model_file_that_is_none_says_why(tmp_path: Path, name: str, words: str) -> None:
    put(tmp_path / "x" / "1" / name)
    put(tmp_path / "x" / "1" / "notes.txt")
    put(tmp_path / "x" / "config.pbtxt", f'default_model_filename: "{name}"'.encode())
    ((key, problem),) = found(tmp_path).items()
    assert key == ("x", "1")
    assert words in problem


def test_weights_of_another_name_say_what_to_rename(tmp_path: Path) -> None:
    put(tmp_path / "x" / "model.xml")
    put(tmp_path / "x" / "weights.bin")
    assert "the name of their .xml" in found(tmp_path)["x/weights.bin", NO_VERSION]


def test_a_version_that_the_policy_names_and_that_is_missing_is_told(tmp_path: Path) -> None:
    put(tmp_path / "x" / "01" / "model.onnx")
    put(tmp_path / "x" / "2" / "model.onnx")
    put(tmp_path / "x" / "config.pbtxt", b"version_policy { specific { versions: [1, 2] } }")
    told = found(tmp_path)
    assert told["x", "2"] == ""
    assert "x/1: is missing, and version_policy specific in config.pbtxt names it" in told["x", "1"]
    assert ("x", "01") not in told


def test_files_beside_a_served_model_stand_there_too(tmp_path: Path) -> None:
    put(tmp_path / "x" / "1" / "model.onnx")
    for name in ("vocab.txt", "tokenizer.json", "a.json", "b.json", "c.json"):
        put(tmp_path / "x" / "1" / name)
    (tmp_path / "x" / "empty").mkdir()
    put(tmp_path / "x" / "config.toml")
    told = found(tmp_path)
    assert told.pop(("x", "1")) == ""
    assert set(told) == {(f"x/{path}", NO_VERSION) for path in ("1/a.json", "empty", "config.toml")}
    assert "(likewise: b.json, c.json, tokenizer.json and 1 more)" in told["x/1/a.json", NO_VERSION]


def test_a_file_beside_a_folder_of_its_name_is_refused_and_the_folder_serves(tmp_path: Path) -> None:
    put(tmp_path / "x.onnx")
    put(tmp_path / "x" / "2" / "model.onnx")
    told = found(tmp_path)
    assert told["x", "2"] == ""
    assert "has the same name as the folder x; move it into x/<version>" in told["x.onnx", NO_VERSION]
    assert [release.version for release in scan_model(tmp_path, "x")] == ["2"]


@pytest.mark.parametrize(
    "name", [".hidden.onnx", "README.md", "LICENSE", "card.md", "__pycache__/x.onnx", "recipes/b.py"]
)
def test_hidden_files_documents_and_recipes_are_left_out(tmp_path: Path, name: str) -> None:
    put(tmp_path / name)
    assert scan(tmp_path) == ()
    put(tmp_path / "x" / "1" / "model.onnx")
    put(tmp_path / "x" / name)
    assert found(tmp_path) == {("x", "1"): ""}


def test_a_folder_with_too_many_entries_is_refused(tmp_path: Path) -> None:
    for number in range(5):
        put(tmp_path / "x" / f"{number}.txt")
    (release,) = scan(tmp_path, settings_with(LibrarySettings(), entries_limit=4))
    assert "holds more than 4 entries" in release.problem


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "good.onnx")
    put(tmp_path / "x" / "model" / "model.onnx")
    listing = Path.iterdir

    def refusing(folder: Path) -> object:
        if folder.name == "model":
            raise PermissionError(13, "Permission denied", str(folder))
        return listing(folder)

    monkeypatch.setattr(Path, "iterdir", refusing)  # tests may run as root, which no mode bits stop
    told = found(tmp_path)
    assert told["good", "1"] == ""
    assert "Permission denied" in told["x", "model"]


@pytest.mark.parametrize("place", ["m/1/model.onnx", "m/1/manifest.toml", "m/1", "m"])
def test_what_the_service_may_not_read_names_the_command(tmp_path: Path, place: str) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"x")
    if place.endswith(".toml"):
        (tmp_path / place).write_text("schema = 1")
    user = os.geteuid()
    owned = [folder for folder in (tmp_path, *tmp_path.parents) if folder.stat().st_uid == user]
    modes = {folder: folder.stat().st_mode for folder in owned}
    for folder, mode in modes.items():
        folder.chmod(mode | 0o055)
    (tmp_path / place).chmod(0)
    try:
        os.seteuid(user or 65534)  # root may read everything
        found = scan(tmp_path)
    finally:
        os.seteuid(user)
        (tmp_path / place).chmod(0o755)
        for folder, mode in modes.items():
            folder.chmod(mode)
    assert [f"sudo chmod -R a+rX {tmp_path / place}" in release.problem for release in found] == [True]
