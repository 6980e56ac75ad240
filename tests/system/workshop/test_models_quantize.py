"""`edge-gateway models quantize`: from a float file to quantized variants that are measured and served."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from onnx import helper, numpy_helper
from PIL import Image

from gateway.common.domain.manifest_toml import read_manifest
from tests.simulators.daemon import COMMAND, ROOT, SHIPPED, golden, running
from tests.simulators.models_made import image_classifier, save, shaped
from tests.simulators.workshop_tools import COMMAND as TOOLED
from tests.simulators.workshop_tools import FOLDER, by_name, environment, manifest_of, models, new, quantized
from tests.world.exports import sklearn_entries

pytestmark = pytest.mark.timeout(180)
METER, ACTIVITY = SHIPPED / "meter-reader" / "1", SHIPPED / "activity" / "1"
DIGITS = tuple("0123456789")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return digits as PNG files, in a folder for each class."""
    folder = tmp_path_factory.mktemp("photos")
    with np.load(METER / "golden.npz") as arrays:
        for index, (row, label) in enumerate(zip(arrays["input.image"], arrays["label"], strict=True)):
            (folder / str(label)).mkdir(exist_ok=True)
            Image.fromarray(np.rint(row[0] * 255).astype(np.uint8)).save(folder / str(label) / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def meter(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a version with every variant that can be made from its two float files, and what was told."""
    folder = tmp_path_factory.mktemp("library") / "models"
    version = new(folder, METER / "onnx-fp32/model.onnx", METER / "litert-fp32/model.tflite", labels=DIGITS)
    return version, quantized(version, photos, "--plot", folder.parent / "variants.svg")


@pytest.fixture(scope="module")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a version for commands that are refused; do not change it."""
    return new(tmp_path_factory.mktemp("untouched") / "models", METER / "onnx-fp32/model.onnx", labels=DIGITS)


def test_every_variant_is_made_measured_and_kept(meter: tuple[Path, dict[str, Any]]) -> None:
    folder, told = meter
    assert (told["accuracy_is"], told["reference"]) == ("labels", "onnx-fp32")
    assert told["samples"] == {"found": 360, "calibration": 180, "heldout": 180}
    found = by_name(told)
    made = ["onnx-int8", "openvino-fp16", "openvino-int8", "litert-int8", "litert-dynamic-int8"]
    assert list(found) == ["onnx-fp32", "litert-fp32", *made]
    for name in made:
        assert found[name]["kept"], found[name]["note"]
        assert found[name]["accuracy"] > 0.97
        assert found[name]["bytes"] < found["onnx-fp32"]["bytes"]
        assert found[name]["p50_us"] > 0
    assert (folder.parents[2] / "variants.svg").read_text().startswith("<svg")
    manifest = manifest_of(folder)
    assert [variant.name for variant in manifest.variants] == list(found)
    assert manifest.golden is not None
    assert set(manifest.golden.tolerance) == {"onnx", "openvino", "litert"}
    bound = manifest.variant("litert-int8")
    assert bound is not None
    assert bound.bind["image"].layout == "NHWC"


def test_the_release_passes_as_a_device_checks_it(meter: tuple[Path, dict[str, Any]], state: Path) -> None:
    folder, _ = meter
    done = models("check", folder, "--json", "--state", state)
    assert done.returncode == 0, done.stdout
    checked = json.loads(done.stdout)["releases"][0]["variants"]
    assert {variant["level"] for variant in checked} == {"proven"}


def test_a_daemon_serves_a_quantized_variant(meter: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = meter
    wanted = golden("meter-reader", 64)
    with running(tmp_path, models=folder.parents[1]) as daemon:
        chosen = daemon.wait_logged("variant chosen", model="m")
        tensor = triton.InferInput("image", list(wanted.rows.shape), "FP32")
        tensor.set_data_from_numpy(wanted.rows)
        with triton.InferenceServerClient(daemon.grpc) as client:
            answer = client.infer("m", [tensor], outputs=[triton.InferRequestedOutput("scores")]).as_numpy("scores")
    assert (chosen["variant"], chosen["verified"]) == ("onnx-int8", "proven")
    with np.load(METER / "golden.npz") as arrays:
        assert np.mean(answer.argmax(1) == arrays["label"][:64]) > 0.9


def test_bf16_is_made_where_it_is_named_and_the_processor_has_it(photos: Path, tmp_path: Path) -> None:
    version = new(tmp_path / "models", METER / "onnx-fp32/model.onnx", labels=DIGITS)
    if "avx512_bf16" not in Path("/proc/cpuinfo").read_text():
        done = models("quantize", version, "--calibration", photos, "--only", "openvino-bf16")
        assert "openvino-bf16 is not made: this CPU lacks avx512_bf16" in done.stderr
        return
    told = quantized(version, photos, "--only", "openvino-bf16")
    made = by_name(told)["openvino-bf16"]
    assert made["accuracy"] > 0.9
    variant = next(each for each in manifest_of(version).variants if each.name == "openvino-bf16")
    assert (variant.precision, variant.accelerators, variant.needs) == ("bf16", ("cpu",), ("avx512_bf16",))
    done = subprocess.run(
        [*COMMAND, "explain", version.parent.name, "--models", tmp_path / "models", "--state", tmp_path, "--json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    tried = next(each for each in json.loads(done.stdout)["variants"] if each["name"] == "openvino-bf16")
    assert tried["eligible"], tried


@pytest.mark.long
def test_a_repetition_keeps_what_was_made_and_other_data_make_it_again(photos: Path, tmp_path: Path) -> None:
    folder = new(tmp_path / "models", METER / "onnx-fp32/model.onnx", labels=DIGITS)
    only = ("--only", "onnx-int8,openvino-fp16")
    first = quantized(folder, photos, *only)
    before = (folder / "manifest.toml").read_bytes()
    again = quantized(folder, photos, *only)
    assert by_name(first)["onnx-int8"]["note"] == "made from onnx-fp32"
    assert by_name(again)["onnx-int8"]["note"] == "made before from the same data"
    assert (folder / "manifest.toml").read_bytes() == before
    other = quantized(folder, photos, "--only", "onnx-int8", "--seed", 7)
    assert by_name(other)["onnx-int8"]["note"] == "made from onnx-fp32"
    assert list(by_name(other)) == ["onnx-fp32", "openvino-fp16", "onnx-int8"]
    assert {variant.name for variant in manifest_of(folder).variants} == {"onnx-fp32", "openvino-fp16", "onnx-int8"}
    assert models("check", folder).returncode == 0


def test_windows_of_a_table_calibrate_a_series(tmp_path: Path) -> None:
    folder = new(tmp_path / "models", ACTIVITY / "onnx-fp32/model.onnx", labels=("a", "b", "c", "d"))
    with np.load(ACTIVITY / "golden.npz") as arrays:
        rows = [
            ",".join(map(str, [step, *sample, "abcd"[label]]))
            for window, label in zip(arrays["input.motion"], arrays["label"], strict=True)
            for step, sample in enumerate(window.tolist())
        ]
    (tmp_path / "wrist.csv").write_text("\n".join(["time,ax,ay,az,gx,gy,gz,label", *rows]))
    told = quantized(folder, tmp_path / "wrist.csv", "--only", "onnx-int8", "--max-loss", 0.1)
    assert (told["accuracy_is"], told["samples"]["found"]) == ("labels", 40)
    assert by_name(told)["onnx-int8"]["kept"]


def test_five_samples_are_enough_to_run_and_the_consequence_is_told(tmp_path: Path) -> None:
    folder = new(tmp_path / "models", METER / "onnx-fp32/model.onnx")
    with np.load(METER / "golden.npz") as arrays:
        np.savez(tmp_path / "few.npz", image=arrays["input.image"][:5])
    told = quantized(folder, tmp_path / "few.npz", "--only", "onnx-int8", "--max-loss", 1)
    assert told["accuracy_is"] == "agreement"
    remarks = " ".join(told["remarks"])
    assert "ranges are taken from 3 samples" in remarks
    assert "accuracy is measured on 2 samples, so one of them is 50.0 %" in remarks


def test_samples_that_the_file_scales_once_more_are_told(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    keras (float[n,3,8,8] image) => (float[n,3] scores)
    <float scale = {0.003921569}, float[3,3] w = {1,2,3,4,5,6,7,8,9}> {
        unit = Mul(image, scale)
        mean = GlobalAveragePool(unit)
        flat = Flatten(mean)
        scores = MatMul(flat, w)
    }""")
    folder = new(tmp_path / "models", save(model, tmp_path / "m.onnx"))
    images = np.random.default_rng(1).random((8, 3, 8, 8), np.float32)
    for name, factor in (("unit", 1), ("pixels", 255)):
        np.savez(tmp_path / f"{name}.npz", image=images * factor)
    told = [
        " ".join(quantized(folder, tmp_path / file, "--only", "onnx-int8", "--max-loss", 1)["remarks"])
        for file in ("unit.npz", "pixels.npz")
    ]
    assert ["the file scales them itself" in remarks for remarks in told] == [True, False]


def test_what_loses_too_much_is_not_written_and_it_is_said(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.random.default_rng(1).normal(size=(8, 1)).astype(np.float32), "w")
    model = shaped(
        {"x": ["n", 8]}, {"y": ["n", 1]}, helper.make_node("MatMul", ["x", "w"], ["y"]), initializer=[weights]
    )
    folder = new(tmp_path / "models", save(model, tmp_path / "m.onnx"))
    before = manifest_of(folder).variants
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(2).normal(size=(120, 8)))
    told = quantized(folder, tmp_path / "x.npz", "--only", "onnx-int8", "--max-loss", 0, code=1)
    found = by_name(told)["onnx-int8"]
    assert (told["accuracy_is"], found["kept"]) == ("deviation", False)
    assert "not written: it loses 0." in found["note"]
    assert not (folder / "onnx-int8").exists()
    assert [variant.artifacts for variant in manifest_of(folder).variants] == [each.artifacts for each in before]


def test_the_golden_set_of_an_author_stays(tmp_path: Path) -> None:
    folder = tmp_path / "meter-reader" / "1"
    shutil.copytree(METER, folder)
    text = (folder / "manifest.toml").read_text()
    cut = text.index('[[variant]]\nname = "onnx-int8"'), text.index('[[variant]]\nname = "openvino-fp16"')
    (folder / "manifest.toml").write_text(text[: cut[0]] + text[cut[1] :])
    before = (folder / "golden.npz").read_bytes()
    told = quantized(folder, METER / "golden.npz", "--only", "onnx-int8")
    assert told["samples"]["heldout"] == 360
    assert (folder / "golden.npz").read_bytes() == before
    assert manifest_of(folder).golden == read_manifest(text, "m").golden
    assert models("check", folder).returncode == 0


def test_an_old_opset_and_external_data_are_no_obstacle(tmp_path: Path) -> None:
    model = image_classifier(channels=1)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 11))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    folder = new(tmp_path / "models", tmp_path / "m.onnx")
    told = quantized(folder, METER / "golden.npz", "--only", "onnx-int8,openvino-fp16", "--max-loss", 1)
    assert "onnx-int8" in by_name(told), told["remarks"]
    assert by_name(told)["openvino-fp16"]["kept"]


def test_a_bias_with_a_dimension_too_many_is_quantized(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    weights = {"w": random.normal(size=(8, 6)), "b": np.full((1, 6), 400.0)}
    model = shaped(
        {"x": ["n", 8]},
        {"y": ["n", 6]},
        helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
        initializer=[numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    folder = new(tmp_path / "models", save(model, tmp_path / "m.onnx"))
    np.savez(tmp_path / "rows.npz", x=random.normal(size=(120, 8)))
    told = quantized(folder, tmp_path / "rows.npz", "--only", "onnx-int8", "--max-loss", 1)
    assert "onnx-int8" in by_name(told), told["remarks"]


@pytest.mark.parametrize(
    ("data", "options", "problem"),
    [
        ("wrong.npz", [], "has the shape [4, 3, 8, 8], but samples of this input are [samples, 1, 8, 8]"),
        ("birds", [], "the label 'bird' is none of the model's labels"),
        ("absent", [], "does not exist"),
        ("good.npz", ["--only", "onnx-int4"], "--only must name some of onnx-int8"),
        ("good.npz", ["--plot", "x.png"], "--plot writes SVG"),
        ("good.npz", ["--max-loss", "2"], "must be a number from 0 to 1"),
        ("good.npz", ["--only", "litert-int8"], "there is nothing to make: litert-int8 is not made: it needs a float"),
    ],
)
def test_data_and_options_that_do_not_fit_are_refused(
    untouched: Path, tmp_path: Path, data: str, options: list[str], problem: str
) -> None:
    np.savez(tmp_path / "wrong.npz", image=np.zeros((4, 3, 8, 8)))
    np.savez(tmp_path / "good.npz", image=np.zeros((4, 1, 8, 8)))
    for name in ("bird", "0"):
        (tmp_path / "birds" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "birds" / name / "a.png")
    before = (untouched / "manifest.toml").read_bytes()
    done = models("quantize", untouched, "--calibration", tmp_path / data, *options)
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1
    assert (untouched / "manifest.toml").read_bytes() == before


def test_a_folder_without_a_manifest_is_refused(tmp_path: Path) -> None:
    done = models("quantize", tmp_path, "--calibration", tmp_path)
    assert done.returncode == 2
    assert "make one: edge-gateway models new FILE" in done.stderr


def test_without_the_tools_the_extra_is_named(untouched: Path) -> None:
    command = [*COMMAND, "models", "quantize", untouched, "--calibration", METER / "golden.npz"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "which is not installed; " in done.stderr
    assert f"-m pip install --editable '{ROOT}[workshop]'" in done.stderr


def test_a_disk_that_fills_up_leaves_the_release_as_it_was(untouched: Path) -> None:
    before = (untouched / "manifest.toml").read_bytes()
    done = models(
        *("quantize", untouched, "--calibration", METER / "golden.npz", "--only", "onnx-int8"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384)),
    )
    assert done.returncode != 0
    assert (untouched / "manifest.toml").read_bytes() == before
    assert not (untouched / "onnx-int8").exists()
    assert models("check", untouched).returncode == 0


def test_after_an_interrupt_the_release_is_as_before_and_the_next_run_goes_on(tmp_path: Path) -> None:
    folder = new(tmp_path / "models", METER / "onnx-fp32/model.onnx")
    before = (folder / "manifest.toml").read_bytes()
    command = [*TOOLED, "quantize", folder, "--calibration", METER / "golden.npz"]
    with subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(folder.glob(".quantized/onnx-int8-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)
    assert process.returncode == 130
    assert (folder / "manifest.toml").read_bytes() == before
    assert not list(folder.glob(".quantized/.tmp-*"))
    told = quantized(folder, METER / "golden.npz", "--only", "onnx-int8")
    assert by_name(told)["onnx-int8"]["note"] == "made before from the same data"


@pytest.mark.parametrize(
    "model",
    [
        *("logistic-string-labels", "scaled-network"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("logistic-no-zipmap", "forest-no-zipmap")),
    ],
)
def test_models_of_scikit_learn_are_described(tmp_path: Path, model: str) -> None:
    known = sys.path.copy()
    try:
        entry = next(each for each in sklearn_entries(FOLDER) if each.name == model)
    finally:
        sys.path[:] = known
    content = entry.files["model.onnx"]
    assert isinstance(content, bytes)
    (tmp_path / f"{model}.onnx").write_bytes(content)
    folder = new(tmp_path / "models", tmp_path / f"{model}.onnx")
    manifest = manifest_of(folder)
    assert manifest.task == "tabular-classification"
    classes = {"logistic-string-labels": ("high", "low", "mid"), "scaled-network": ()}.get(model, ("0", "1", "2"))
    assert manifest.labels == classes
    assert manifest.task_options == {"output": manifest.outputs[1].name}
    assert [spec.postprocess for spec in manifest.outputs] == ["", ""]
    assert models("check", folder).returncode == 0


def test_a_model_without_anything_to_quantize_gets_no_variant(tmp_path: Path) -> None:
    model = shaped({"x": ["n", 4]}, {"y": ["n", 4]}, helper.make_node("Sin", ["x"], ["y"]))
    folder = new(tmp_path / "models", save(model, tmp_path / "m.onnx"))
    rows = np.random.default_rng(3).normal(size=(120, 4))
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,c,d", comments="")
    told = quantized(folder, tmp_path / "rows.csv", "--only", "onnx-int8", code=1)
    assert told["accuracy_is"] == "agreement"
    assert by_name(told)["onnx-int8"]["note"] == "not written: nothing in it was quantized"
    assert [variant.name for variant in manifest_of(folder).variants] == ["onnx-fp32"]
