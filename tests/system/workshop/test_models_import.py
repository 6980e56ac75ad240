"""The path of an operator: import, check, serve, infer."""

import json
import subprocess

import numpy as np
import onnx
import openvino
import pytest
import tritonclient.http as over_http
import yaml
from onnxruntime.quantization import quantize_dynamic

from tests.simulators import import_sources as sources
from tests.simulators.daemon import COMMAND, ROOT, running
from tests.simulators.images_made import encoded

X = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 0.5]], np.float32)


def gateway_command(*words, code=0):
    done = subprocess.run([*COMMAND, "models", *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return a model directory with one release of every kind of source that needs no package of its own."""
    folder = tmp_path_factory.mktemp("sources")
    into = tmp_path_factory.mktemp("library") / "models"
    (folder / "named").mkdir()
    sources.write_detector(folder / "yolo.onnx", metadata=sources.ultralytics_metadata())
    written = {
        sources.write_triton(folder / "triton"): [],
        sources.write_openvino_server(folder / "ovms"): ["--name", "ovms-sums"],
        sources.write_mlflow(folder / "named"): ["--name", "mlflow-sums", "--version", "7"],
        sources.write_hugging_face(folder / "vit"): [],
        folder / "yolo.onnx": [],
    }
    for source, options in written.items():
        gateway_command("import", source, "--into", into, *options)
    return into


@pytest.fixture(scope="module")
def gateway(library, tmp_path_factory, state):
    with running(tmp_path_factory.mktemp("gateway"), models=library, state=state) as daemon:
        yield daemon


@pytest.fixture
def client(gateway):
    client = over_http.InferenceServerClient(gateway.http)
    yield client
    client.close()


def test_every_release_passes_its_check(library):
    report = json.loads(gateway_command("check", library, "--json"))
    names = [(release["name"], release["version"]) for release in report["releases"]]
    assert report["ok"]
    assert names == [
        ("mlflow-sums", "7"),
        ("ovms-sums", "2"),
        ("sums", "1"),
        ("sums", "2"),
        ("vit", "1"),
        ("yolo", "1"),
    ]


@pytest.mark.parametrize("model", ["sums", "ovms-sums", "mlflow-sums"])
def test_tensors_are_answered_as_by_the_model(client, model):
    tensor = over_http.InferInput("x", list(X.shape), "FP32")
    tensor.set_data_from_numpy(X)
    answer = client.infer(model, [tensor]).as_numpy("y")
    np.testing.assert_allclose(answer, X @ sources.WEIGHTS, rtol=1e-5)


def test_images_are_prepared_as_the_processor_does(client):
    image = np.full((8, 8, 3), (255, 127, 0), np.uint8)
    tensor = over_http.InferInput("pixel_values", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([encoded(image)], object))
    wanted = [over_http.InferRequestedOutput(name) for name in ("logits", "result")]
    answer = client.infer("vit", [tensor], outputs=wanted)
    scores, (result,) = answer.as_numpy("logits"), map(json.loads, answer.as_numpy("result"))
    logits = ((image[0, 0] / 255 - 0.5) / 0.5) @ sources.WEIGHTS
    np.testing.assert_allclose(scores[0], np.exp(logits) / np.exp(logits).sum(), rtol=1e-3)
    assert result["label"] == sources.CLASSES[int(logits.argmax())]


def test_detections_are_in_pixels_of_the_image(client):
    tensor = over_http.InferInput("images", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([encoded(np.full((80, 160, 3), 255, np.uint8))], object))
    (result,) = map(json.loads, client.infer("yolo", [tensor]).as_numpy("result"))
    assert result["detections"]
    assert {found["label"] for found in result["detections"]} <= set(sources.CLASSES)
    assert all(0 <= edge <= 160 for found in result["detections"] for edge in found["box"])


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Return sources with the work of real converters: OpenVINO's, ONNX Runtime's, external data of `onnx`."""
    root = tmp_path_factory.mktemp("converted")
    sources.write_detector(root / "yolo" / "yolo.onnx", metadata=sources.ultralytics_metadata())
    folder = root / "yolo" / "yolo_openvino_model"
    openvino.save_model(openvino.convert_model(root / "yolo" / "yolo.onnx"), folder / "yolo.xml")
    metadata = {"author": "Ultralytics", "task": "detect", "imgsz": [8, 8], "args": {"half": True, "int8": False}}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(metadata | {"names": dict(enumerate(sources.CLASSES))}))
    vit = sources.write_hugging_face(root / "vit") / "onnx"
    quantize_dynamic(vit / "model.onnx", vit / "model_quantized.onnx")
    sources.write_classifier(root / "net.onnx")
    net = sources.write_openvino_server(root / "ovms", layout="NHWC:NCHW", base_path="/opt/net", name="net")
    openvino.save_model(openvino.convert_model(root / "net.onnx"), net / "net" / "4" / "net.xml")
    sources.write_sums(root / "sums.onnx")
    (root / "triton" / "big" / "1").mkdir(parents=True)
    (root / "triton" / "big" / "config.pbtxt").write_text(
        'max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 3, 1 ] reshape { shape: [ 3 ] } }'
    )
    external = {"save_as_external_data": True, "location": "weights.data", "size_threshold": 0}
    onnx.save_model(onnx.load(root / "sums.onnx"), root / "triton" / "big" / "1" / "model.onnx", **external)
    return root


@pytest.mark.parametrize(
    ("source", "variants"),
    [
        ("yolo", ["onnx-fp32", "openvino-fp16"]),
        ("vit", ["onnx-fp32", "onnx-quantized"]),
        ("ovms", ["openvino-fp32"]),
        ("triton", ["onnx-fp32"]),
    ],
)
def test_every_variant_of_a_converter_passes(converted, tmp_path, source, variants):
    gateway_command("import", converted / source, "--into", tmp_path)
    (release,) = json.loads(gateway_command("check", tmp_path, "--json"))["releases"]
    assert sorted(variant["name"] for variant in release["variants"] if variant["tried"]) == variants
    assert release["ok"]


def test_a_dry_run_writes_nothing(tmp_path):
    source = sources.write_triton(tmp_path / "triton")
    said = gateway_command("import", source, "--into", tmp_path / "models", "--dry-run")
    assert "nothing was written" in said
    assert not (tmp_path / "models").exists()


ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "RAW", data_type: TYPE_FP32, dims: [ 3 ] } ]
output [ { name: "SCORES", data_type: TYPE_FP32, dims: [ 3 ] } ]
ensemble_scheduling { step [
  { model_name: "sums", model_version: -1,
    input_map { key: "x", value: "RAW" }, output_map { key: "y", value: "middle" } },
  { model_name: "sums", model_version: 1,
    input_map { key: "x", value: "middle" }, output_map { key: "y", value: "SCORES" } }
] }
"""


def test_an_ensemble_is_imported_as_a_pipeline_that_serves(tmp_path):
    source = sources.write_triton(tmp_path / "triton")
    (source / "twice").mkdir()
    (source / "twice" / "config.pbtxt").write_text(ENSEMBLE)
    said = gateway_command("import", source, "--into", tmp_path / "models")
    assert "twice/1" in said
    checked = json.loads(gateway_command("check", tmp_path / "models", "--json"))["releases"]
    assert {(one["name"], one["version"]): one["ok"] for one in checked} == {
        ("sums", "1"): True,
        ("sums", "2"): True,
        ("twice", "1"): True,
    }
    again = gateway_command("import", source, "--into", tmp_path / "models", code=2)
    assert "exists" in again


def test_skipped_models_are_a_finding_unless_they_may_be_skipped(tmp_path):
    source = sources.write_triton(tmp_path / "triton")
    (source / "both").mkdir()
    (source / "both" / "config.pbtxt").write_text("model_operations { }")
    said = gateway_command("import", source, "--into", tmp_path / "models", "--dry-run", code=1)
    assert "model_operations: is not offered here" in said
    report = json.loads(gateway_command("import", source, "--into", tmp_path / "models", "--skip", "--json"))
    assert [each["name"] for each in report["skipped"]] == ["both"]
    assert len(report["written"]) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--name", "a/b"], "the name 'a/b' cannot be a folder's name"),
        (["--version", "7"], "--version is for one release, but the source has 2"),
        (["--from", "mlflow"], "MLmodel: is missing"),
    ],
)
def test_wrong_options_are_usage_errors(tmp_path, options, problem):
    source = sources.write_triton(tmp_path / "triton")
    assert problem in gateway_command("import", source, "--into", tmp_path / "models", *options, code=2)
    assert not (tmp_path / "models").exists()


def test_all_versions_of_a_model_get_another_name(tmp_path):
    source = sources.write_triton(tmp_path / "triton")
    gateway_command("import", source / "sums", "--into", tmp_path / "models", "--name", "totals")
    assert sorted(each.name for each in (tmp_path / "models" / "totals").iterdir()) == ["1", "2"]


def test_a_model_directory_must_be_named(tmp_path):
    said = gateway_command("import", sources.write_triton(tmp_path), code=2)
    assert "name one with --models DIR or --into DIR" in said


def test_a_second_import_replaces_nothing(tmp_path):
    source = sources.write_mlflow(tmp_path / "sums")
    gateway_command("import", source, "--into", tmp_path / "models")
    assert "exists; name another" in gateway_command("import", source, "--into", tmp_path / "models", code=2)
    gateway_command("import", source, "--into", tmp_path / "models", "--version", "2")
    assert sorted(each.name for each in (tmp_path / "models" / "sums").iterdir()) == ["1", "2"]
