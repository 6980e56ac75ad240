"""The committed models are whole: manifests hold what the contract names, and files are what they say."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import tomllib

MODELS = Path(__file__).resolve().parents[4] / "models"
MANIFESTS = sorted(MODELS.glob("*/*/manifest.toml"))
VARIANTS = {
    "onnx-fp32": ("onnx", "fp32"),
    "onnx-int8": ("onnx", "int8"),
    "openvino-fp16": ("openvino", "fp16"),
    "openvino-int8": ("openvino", "int8"),
    "litert-fp32": ("litert", "fp32"),
    "litert-int8": ("litert", "int8"),
    "reference": ("reference", "fp32"),
}
REFERENCE_OPERATORS = frozenset(
    {
        *("Identity", "Relu", "Gemm", "MatMul", "Add", "Sub", "Mul", "Conv", "MaxPool", "AveragePool"),
        *("GlobalAveragePool", "Flatten", "Reshape", "Transpose", "Concat", "Softmax", "ReduceMean"),
    }
)
MODEL_KEYS = {
    "schema",
    "name",
    "version",
    "task",
    "labels",
    "max_accuracy_loss",
    "rows",
    "input",
    "output",
    "golden",
    "variant",
}
VARIANT_KEYS = {"name", "runtime", "precision", "accuracy", "accelerators", "needs", "artifacts", "bind"}


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.parent.parent.name)
def manifest(request):
    return request.param.parent, tomllib.loads(request.param.read_text())


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_both_models_are_shipped():
    assert [path.relative_to(MODELS).as_posix() for path in MANIFESTS] == [
        "activity/1/manifest.toml",
        "meter-reader/1/manifest.toml",
    ]


def test_a_manifest_names_its_folder_and_holds_the_contracts_keys(manifest):
    folder, read = manifest
    assert (read["name"], read["version"]) == (folder.parent.name, folder.name)
    assert read["schema"] == 1
    assert set(read) - {"window"} == MODEL_KEYS
    assert all(set(variant) == VARIANT_KEYS for variant in read["variant"])


def test_a_model_has_every_variant_once(manifest):
    _, read = manifest
    found = {variant["name"]: (variant["runtime"], variant["precision"]) for variant in read["variant"]}
    assert found == VARIANTS
    assert len(read["variant"]) == len(VARIANTS)


def test_variants_bind_every_tensor_and_say_where_inputs_have_their_axes(manifest):
    _, read = manifest
    inputs = {tensor["name"]: tensor for tensor in read["input"]}
    for variant in read["variant"]:
        assert set(variant["bind"]) == {*inputs, *(tensor["name"] for tensor in read["output"])}
        for name, tensor in inputs.items():
            assert sorted(variant["bind"][name]["layout"]) == sorted(tensor["layout"])


def test_artifacts_have_the_size_and_digest_of_the_manifest(manifest):
    folder, read = manifest
    for artifact in (each for variant in read["variant"] for each in variant["artifacts"]):
        path = folder / artifact["path"]
        assert (path.stat().st_size, sha256(path)) == (artifact["bytes"], artifact["sha256"]), artifact["path"]


def test_a_folder_holds_nothing_that_its_manifest_does_not_name(manifest):
    folder, read = manifest
    named = {artifact["path"] for variant in read["variant"] for artifact in variant["artifacts"]}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == {*named, "manifest.toml", "card.md", read["golden"]["file"]}


def test_the_golden_set_is_the_one_of_the_manifest_and_fits_its_tensors(manifest):
    folder, read = manifest
    golden = folder / read["golden"]["file"]
    assert sha256(golden) == read["golden"]["sha256"]
    assert set(read["golden"]["tolerance"]) == {"onnx", "openvino", "litert", "reference"}
    with np.load(golden, allow_pickle=False) as arrays:
        rows = len(arrays["label"])
        for kind in ("input", "output"):
            for tensor in read[kind]:
                values = arrays[f"{kind}.{tensor['name']}"]
                assert (values.dtype, list(values.shape)) == (np.float32, [rows, *tensor["shape"][1:]])
                assert np.isfinite(values).all()


def test_golden_outputs_are_probabilities_and_labels_are_classes(manifest):
    folder, read = manifest
    with np.load(folder / read["golden"]["file"], allow_pickle=False) as arrays:
        scores, label = arrays[f"output.{read['output'][0]['name']}"], arrays["label"]
    np.testing.assert_allclose(scores.sum(axis=1), 1.0, atol=1e-5)
    assert label.dtype == np.int64
    assert set(np.unique(label)) == set(range(len(read["labels"])))


def test_no_variant_loses_more_than_the_manifest_allows(manifest):
    _, read = manifest
    accuracy = {variant["name"]: variant["accuracy"] for variant in read["variant"]}
    assert min(accuracy.values()) >= accuracy["reference"] - read["max_accuracy_loss"]


def test_the_card_shows_the_manifests_accuracy_for_every_variant(manifest):
    folder, read = manifest
    card = (folder / "card.md").read_text()
    for variant in read["variant"]:
        assert f"| {variant['name']} | {variant['accuracy']:.4f} |" in card


def test_the_reference_graph_uses_known_operators_and_defines_what_it_reads(manifest):
    folder, read = manifest
    with np.load(folder / "reference" / "model.npz", allow_pickle=False) as arrays:
        graph = json.loads(arrays["graph"].tobytes())
        weights = {key: arrays[key].dtype for key in arrays.files if key != "graph"}
    assert {node["op"] for node in graph["nodes"]} <= REFERENCE_OPERATORS
    assert set(weights.values()) == {np.dtype(np.float32)}
    known = {*weights, *(tensor["name"] for tensor in graph["inputs"])}
    for node in graph["nodes"]:
        assert set(node["inputs"]) <= known
        known |= set(node["outputs"])
    assert {tensor["name"] for tensor in graph["outputs"]} <= known
    assert [tensor["shape"] for tensor in graph["inputs"]] == [tensor["shape"] for tensor in read["input"]]


def test_the_window_of_activity_matches_its_input():
    read = tomllib.loads((MODELS / "activity/1/manifest.toml").read_text())
    assert read["input"][0]["shape"] == [-1, read["window"]["size_rows"], len(read["window"]["channels"])]
    assert 0 < read["window"]["hop_rows"] <= read["window"]["size_rows"]
