"""Import of configurations of OpenVINO Model Server, and of its folders of versions."""

import json

import pytest
from onnx import TensorProto, helper

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Binding
from gateway.workshop.importing.openvino_server import is_openvino_server, read_openvino_server
from tests.simulators.import_sources import documents_of, save, write_classifier, write_openvino_server, write_sums


def read(root):
    documents = documents_of(root)
    assert is_openvino_server(documents)
    return read_openvino_server(documents)


def test_the_newest_version_is_served_without_a_policy(tmp_path):
    (model,) = read(write_openvino_server(tmp_path)).models
    assert (model.name, model.version) == ("sums", "2")


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ({"all": {}}, ["1", "2"]),
        ({"latest": {"num_versions": 2}}, ["1", "2"]),
        ({"specific": {"versions": [1]}}, ["1"]),
    ],
)
def test_the_version_policy_applies(tmp_path, policy, versions):
    found = read(write_openvino_server(tmp_path, model_version_policy=policy))
    assert [model.version for model in found.models] == versions


@pytest.mark.parametrize("path", ["/opt/ovms/models/sums", "./models/sums"])
def test_the_path_of_another_machine_is_found_in_the_source(tmp_path, path):
    assert len(read(write_openvino_server(tmp_path, base_path=path)).models) == 1


@pytest.mark.parametrize(
    ("path", "problem"), [("../sums", "leads out of the source"), ("/opt/other", "is not in the source")]
)
def test_a_path_outside_the_source_is_refused(tmp_path, path, problem):
    with pytest.raises(ConfigurationError, match=problem):
        read(write_openvino_server(tmp_path, base_path=path))


@pytest.mark.parametrize("path", ["", "models/gone"])
def test_a_folder_without_versions_is_named(tmp_path, path):
    found = read(write_openvino_server(tmp_path, base_path=path))
    assert "holds no folder of a version" in found.skipped[0].why


def test_a_model_in_the_cloud_is_skipped(tmp_path):
    found = read(write_openvino_server(tmp_path, base_path="s3://bucket/sums"))
    assert "download it" in found.skipped[0].why


@pytest.mark.parametrize("shape", ["(5,3)", {"x": "(5, 3)"}, '{"x": "(5,3)"}'])
def test_a_shape_fixes_open_dimensions(tmp_path, shape):
    (model,) = read(write_openvino_server(tmp_path, shape=shape)).models
    assert model.inputs[0].shape == (5, 3)


@pytest.mark.parametrize("shape", ["(1,4)", "(1,3,3)", "nonsense", "(1,0)", "(1," + "9" * 5000 + ")"])
def test_a_shape_that_the_file_does_not_take_is_skipped(tmp_path, shape):
    found = read(write_openvino_server(tmp_path, shape=shape))
    assert (found.models, len(found.skipped)) == ((), 1)


@pytest.mark.parametrize(("batch", "rows"), [(8, 8), ("1:16", 16), ("auto", 0), (-1, 0), ("9" * 30, 0)])
def test_the_batch_size_bounds_rows(tmp_path, batch, rows):
    (model,) = read(write_openvino_server(tmp_path, batch_size=batch)).models
    assert model.max_batch_rows == rows


def test_a_layout_turns_the_tensor_of_clients(tmp_path):
    write_openvino_server(tmp_path, layout="NHWC:NCHW")
    for version in ("1", "2"):
        write_classifier(tmp_path / "models" / "sums" / version / "sums.onnx")
    (model,) = read(tmp_path).models
    assert (model.inputs[0].layout, model.inputs[0].shape) == ("NHWC", (-1, -1, -1, 3))
    assert model.variants[0].bind == {"pixel_values": Binding("pixel_values", "NCHW")}


def test_an_output_has_a_layout_as_well(tmp_path):
    write_openvino_server(tmp_path, layout={"x": "NC", "y": "NLC:NCL"})
    for version in ("1", "2"):
        write_columns(tmp_path / "models" / "sums" / version / "sums.onnx")
    (model,) = read(tmp_path).models
    assert (model.outputs[0].layout, model.outputs[0].shape) == ("NLC", (-1, 5, 4))
    assert model.variants[0].bind == {"y": Binding("y", "NCL")}


def write_columns(file):
    """Write a model of `x` [rows, 4, 5] to `y` of the same shape."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 4, 5]) for name in "xy"]
    save(file, helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "net", tensors[:1], tensors[1:]))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"shape": {"z": "(1,3)"}}, "shape names 'z', but the tensors are x"),
        ({"layout": {"z": "NC"}}, "layout names 'z', but the tensors are x, y"),
        ({"layout": "NHWC:NCHW"}, "layout 'NHWC:NCHW' of x is not offered here"),
    ],
)
def test_texts_for_other_tensors_are_skipped(tmp_path, change, problem):
    assert problem in read(write_openvino_server(tmp_path, **change)).skipped[0].why


@pytest.mark.parametrize("key", ["stateful", "low_latency_transformation"])
def test_models_with_state_are_skipped(tmp_path, key):
    assert f"{key} is not offered here" in read(write_openvino_server(tmp_path, **{key: True})).skipped[0].why
    assert read(write_openvino_server(tmp_path, **{key: False})).skipped == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"nirek": 4}, r"config.json:\d+: model_config_list\[0\].config.nirek: unknown key"),
        ({"name": "a/b"}, "the name 'a/b' cannot be a folder's name"),
        ({"name": 3}, "must be a string"),
        ({"shape": {"x": 3}}, "must be text"),
        ({"model_version_policy": {}}, "must hold latest, specific or all"),
    ],
)
def test_a_wrong_entry_is_an_error(tmp_path, change, problem):
    with pytest.raises(ConfigurationError, match=problem):
        read(write_openvino_server(tmp_path, **change))


def test_two_models_of_one_name_are_an_error(tmp_path):
    write_openvino_server(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    document["model_config_list"] *= 2
    (tmp_path / "config.json").write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match="two models are called 'sums'"):
        read(tmp_path)


def test_graphs_of_mediapipe_are_named_and_skipped(tmp_path):
    write_openvino_server(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    document["mediapipe_config_list"] = [{"name": "both", "graph_path": "graph.pbtxt"}]
    document["monitoring"] = {"metrics": {"enable": True}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    (skipped,) = read(tmp_path).skipped
    assert (skipped.name, "a graph of MediaPipe is not offered" in skipped.why) == ("both", True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"model_config_list": [', "config.json:1: not valid JSON"),
        ('{"model_config_list": [],\n "model_config_list": []}', "is given twice"),
        ('{"model_config_list": NaN}', "NaN is no JSON"),
        ('{"model_config_list": ' + "[" * 100_000, "not valid JSON"),
        ('["model_config_list"]', "must be a JSON object"),
    ],
)
def test_damaged_json_is_an_error(tmp_path, text, problem):
    write_openvino_server(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        read_openvino_server(documents_of(tmp_path))


def test_a_folder_of_versions_is_a_model(tmp_path):
    for version in ("1", "3", "0"):
        write_sums(tmp_path / "net" / version / "any.onnx")
    found = read(tmp_path / "net")
    assert [(model.name, model.version) for model in found.models] == [("net", "1"), ("net", "3")]
    assert [each.version for each in found.skipped] == ["0"]
