"""`edge-gateway models new`: from a file to a version that is checked and served."""

from __future__ import annotations

import json
import os
import pty
import resource
import shutil
import signal
import subprocess
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest
import tritonclient.grpc as triton
from PIL import Image

from gateway.common.domain.manifest_toml import read_manifest
from tests.simulators.daemon import COMMAND, ROOT, SHIPPED, running
from tests.simulators.models import write_onnx_endless
from tests.simulators.models_made import image_classifier, save, shaped, with_metadata

METER = SHIPPED / "meter-reader" / "1"
DISHONEST = """<ir_version: 8, opset_import: ["": 17]> g (float[n,4] x) => (float[n,2] y)
<float[3] sides = {1.0, 8.0, 1.0}, float zero = {0.0}> {
    sum = ReduceSum <keepdims = 0> (x)
    nothing = Mul(sum, zero)
    size = Add(sides, nothing)
    shape = Cast <to = 7> (size)
    y = Expand(nothing, shape)
}"""
"""Model whose shape only a run shows; the file declares another one."""
Call = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


@pytest.fixture
def cli(models: Path) -> Call:
    """Return a function that runs an action of `edge-gateway models`."""

    def call(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "models", *map(str, arguments), "--models", str(models)]
        return subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options
        )

    return call


def test_a_file_that_declares_other_shapes_than_it_answers_with_is_no_manifest_to_correct(
    cli: Call, models: Path, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model(DISHONEST)
    done = cli("new", save(model, tmp_path / "m.onnx"), "--yes")
    assert done.returncode == 2
    assert "declares other shapes than its answers have: output 'y' has shape [1, 8, 1]" in done.stderr
    assert "serve the file bare; nothing was written" in done.stderr
    assert left(models) == []


def left(models: Path) -> list[Path]:
    """Return everything in the model directory, hidden names included."""
    return sorted(models.rglob("*")) if models.exists() else []


def test_three_files_become_one_checked_and_served_model(cli: Call, models: Path, tmp_path: Path, state: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join("0123456789"))
    files = [METER / "onnx-fp32/model.onnx", METER / "litert-int8/model.tflite", METER / "openvino-fp16/model.xml"]
    done = cli("new", *files, "--name", "digits", "--labels", labels, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["name"], told["version"], told["task"]["kind"]) == ("digits", "1", "image-classification")
    assert told["assumed"] == ["input.image.preprocess.scale"]
    assert [variant["name"] for variant in told["variants"]] == ["onnx-fp32", "litert-int8", "openvino-fp16"]
    assert {variant["level"] for variant in told["variants"]} == {"exercised"}
    checked = cli("check", models / "digits" / "1", "--json", "--state", state)
    assert checked.returncode == 0, checked.stdout
    manifest = read_manifest((models / "digits/1/manifest.toml").read_text(), "m")
    assert manifest.labels == tuple("0123456789")
    assert manifest.outputs[0].postprocess == "softmax"
    assert manifest.inputs[0].preprocess is not None
    with running(tmp_path / "gateway", models=models, state=state) as daemon, np.load(METER / "golden.npz") as golden:
        client = triton.InferenceServerClient(daemon.grpc)
        rows = golden["input.image"][:32]
        tensor = triton.InferInput("image", list(rows.shape), "FP32")
        tensor.set_data_from_numpy(rows)
        answer = client.infer("digits", [tensor], outputs=[triton.InferRequestedOutput("scores")]).as_numpy("scores")
        assert np.mean(answer.argmax(1) == golden["label"][:32]) > 0.9
        assert np.allclose(answer.sum(1), 1.0, atol=0.02)
        client.close()


def test_an_encoded_image_is_answered_with_a_label(cli: Call, models: Path, tmp_path: Path) -> None:
    model = with_metadata(image_classifier(2, softmax=True), names="{0: 'cat', 1: 'dog'}")
    save(model, tmp_path / "Our pets!.onnx")
    assert cli("new", tmp_path / "Our pets!.onnx").returncode == 0
    manifest = read_manifest((models / "Our-pets-/1/manifest.toml").read_text(), "m")
    assert (manifest.labels, manifest.outputs[0].postprocess) == (("cat", "dog"), "")
    Image.fromarray(np.full((20, 30, 3), 200, np.uint8)).save(tmp_path / "photo.png")
    command = [
        *COMMAND,
        "infer",
        "Our-pets-",
        "--image",
        str(tmp_path / "photo.png"),
        "--models",
        str(models),
        "--offline",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "cat" in done.stdout or "dog" in done.stdout


def test_labels_are_found_in_the_archive_of_a_tflite_file(cli: Call, models: Path, tmp_path: Path) -> None:
    file = tmp_path / "digits.tflite"
    shutil.copy(METER / "litert-fp32/model.tflite", file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("labels.txt", "\n".join("ABCDEFGHIJ"))
    done = cli("new", file, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["labels"] == list("ABCDEFGHIJ")
    assert "'labels.txt' in the file's archive" in (models / "digits/1/manifest.toml").read_text()


def test_a_model_whose_only_output_is_text_is_described(cli: Call, models: Path, tmp_path: Path) -> None:
    words = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[n,4] x) => (string[n,4] y)
    <float zero = {0.0}> { nothing = Mul(x, zero) y = Cast <to = 8> (nothing) }""")
    save(words, tmp_path / "words.onnx")
    assert (written := cli("new", tmp_path / "words.onnx", "--yes")).returncode == 0, written.stderr
    manifest = read_manifest((models / "words" / "1" / "manifest.toml").read_text(), "manifest.toml")
    assert (manifest.task, [spec.datatype.label for spec in manifest.outputs]) == ("", ["BYTES"])


def test_a_file_that_scales_pixels_itself_takes_them_as_they_are(cli: Call, models: Path, tmp_path: Path) -> None:
    rescaling = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    keras (float[n,3,8,8] image) => (float[n,3] scores) <float scale = {0.003921569}> {
        unit = Mul(image, scale)
        mean = GlobalAveragePool(unit)
        scores = Flatten(mean)
    }""")
    file = save(rescaling, tmp_path / "keras.onnx")
    assert (written := cli("new", file, "--yes")).returncode == 0, written.stderr
    other = cli("new", file, "--yes", "--range", "unit")
    assert "though the file's first operators compute 0.003922 · x +0" in other.stdout.replace("\n", " ")
    lines = cli("new", save(with_metadata(rescaling, character="a\nb"), tmp_path / "lines.onnx"), "--yes")
    assert lines.returncode == 0, lines.stderr
    found = []
    for place in ("keras/1", "keras/2", "lines/1"):
        preprocess = read_manifest((models / place / "manifest.toml").read_text(), "manifest.toml").inputs[0].preprocess
        assert preprocess is not None
        found.append((round(preprocess.scale, 4), preprocess.mean))
    assert found == [(1.0, (0.0,)), (0.0039, (0.0,)), (0.0078, (1.0,))]


def test_options_of_a_task_are_set_by_the_author(cli: Call, models: Path, tmp_path: Path) -> None:
    save(shaped({"x": ["n", 3]}, {"distance": [1, 1], "other": [1, 1]}), tmp_path / "pump.onnx")
    words = ["new", tmp_path / "pump.onnx", "--yes", "--task", "anomaly-detection", "--set", "score=distance"]
    written = cli(*words, "--set", "threshold=0.8", "--set", "anomalous=below")
    assert written.returncode == 0, written.stderr
    manifest = read_manifest((models / "pump" / "1" / "manifest.toml").read_text(), "manifest.toml")
    assert manifest.task_options == {"score": "distance", "threshold": 0.8, "anomalous": "below"}
    lacking = cli(*words)
    assert "task.threshold" in lacking.stdout
    assert "--set KEY=VALUE" in lacking.stdout
    refused = cli(*words, "--set", "threshold")
    assert refused.returncode != 0
    assert "--set must be KEY=VALUE, not 'threshold'" in refused.stderr


def test_external_data_is_copied_and_listed(cli: Call, models: Path, tmp_path: Path) -> None:
    onnx.save(image_classifier(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert cli("new", tmp_path / "m.onnx").returncode == 0
    (variant,) = read_manifest((models / "m/1/manifest.toml").read_text(), "m").variants
    assert [artifact.path for artifact in variant.artifacts] == ["onnx-fp32/m.onnx", "onnx-fp32/m.data"]
    assert cli("check", models / "m").returncode == 0


def test_versions_count_up_and_are_never_replaced(cli: Call, models: Path, tmp_path: Path) -> None:
    file = save(image_classifier(), tmp_path / "m.onnx")
    assert cli("new", file).returncode == 0
    before = (models / "m/1/manifest.toml").read_bytes()
    assert cli("new", file, "--json").returncode == 0
    assert sorted(each.name for each in (models / "m").iterdir()) == ["1", "2"]
    again = cli("new", file, "--version", "1")
    assert again.returncode == 2
    assert "models/m/1: exists; name another version with --version" in again.stderr
    assert (models / "m/1/manifest.toml").read_bytes() == before


def test_without_a_model_directory_nothing_is_written_into_the_gateways_own(tmp_path: Path) -> None:
    file = save(image_classifier(), tmp_path / "m.onnx")
    done = subprocess.run([*COMMAND, "models", "new", file], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "/var/lib/edge-gateway/models does not exist; name one with --models DIR" in done.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--labels", "{folder}/three.txt"], "holds 3 labels, but the outputs have 2 classes"),
        (["--labels", "{folder}/absent.txt"], "cannot be read"),
        (["--name", "../m"], "--name must be 1 to 128 letters"),
        (["--version", ".hidden"], "--version must be 1 to 128 letters"),
        (["{folder}/other.onnx"], "is no variant of the first file"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_left(
    cli: Call, models: Path, tmp_path: Path, options: Sequence[str], problem: str
) -> None:
    file = save(image_classifier(2), tmp_path / "m.onnx")
    save(image_classifier(5), tmp_path / "other.onnx")
    (tmp_path / "three.txt").write_text("a\nb\nc\n")
    done = cli("new", file, *(option.format(folder=tmp_path) for option in options))
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
    assert left(models) == []


def test_a_model_whose_runs_never_end_is_refused_and_nothing_is_left(cli: Call, models: Path, tmp_path: Path) -> None:
    write_onnx_endless(tmp_path / "m.onnx")
    config = tmp_path / "c.toml"
    config.write_text("[trial]\ndeadline_s = 4.0\n")
    done = cli("new", tmp_path / "m.onnx", "--config", config)
    assert done.returncode == 2
    assert "does not run here" in done.stderr
    assert left(models) == []


def test_a_disk_that_fills_up_leaves_nothing(cli: Call, models: Path, tmp_path: Path) -> None:
    """The file is larger than any file of this process may be (RLIMIT_FSIZE), as on a full disk in the middle of it."""
    file = save(image_classifier(100_000), tmp_path / "m.onnx")
    size = file.stat().st_size // 2
    done = cli("new", file, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    assert done.returncode == 3
    assert "File too large" in done.stderr
    assert "m.onnx" in done.stderr
    assert left(models) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_half_written(models: Path, tmp_path: Path, number: signal.Signals) -> None:
    write_onnx_endless(tmp_path / "m.onnx")
    command = [*COMMAND, "models", "new", str(tmp_path / "m.onnx"), "--models", str(models)]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while not any(each.name == "m.onnx" for each in left(models)) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=30)
    assert process.returncode == (130 if number == signal.SIGINT else 143)
    assert left(models) == []


def test_a_person_is_asked_what_the_files_leave_open(models: Path, tmp_path: Path) -> None:
    file = save(image_classifier(2), tmp_path / "m.onnx")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    ours, theirs = pty.openpty()
    command = [*COMMAND, "models", "new", str(file), "--models", str(models)]
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, f"wrong\nimagenet\n{tmp_path / 'labels.txt'}\n".encode())
        said, _ = process.communicate(timeout=50)
    os.close(ours)
    assert process.returncode == 0
    assert b"m/1/manifest.toml" in said
    manifest = read_manifest((models / "m/1/manifest.toml").read_text(), "m")
    assert manifest.labels == ("cat", "dog")
    assert manifest.inputs[0].preprocess is not None
    assert len(manifest.inputs[0].preprocess.mean) == 3
