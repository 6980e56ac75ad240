"""Model files of every format, read in a child process."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from onnx import TensorProto, helper, numpy_helper

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.runtimes.settings import TrialSettings
from gateway.workshop.making.model_file import ModelFile, read_model_file
from gateway.workshop.making.settings import WorkshopSettings
from tests.simulators.models_litert import rescaling
from tests.simulators.models_made import image_classifier, save, shaped, with_metadata

MODELS = Path(__file__).parents[4] / "models"


def read(file: Path) -> ModelFile:
    return asyncio.run(read_model_file(file, TrialSettings(nice=0), WorkshopSettings()))


def refused(file: Path) -> str:
    with pytest.raises(ConfigurationError) as found:
        read(file)
    assert str(file) in str(found.value)
    return str(found.value)


@pytest.mark.parametrize("model", ["activity", "meter-reader"])
@pytest.mark.parametrize(
    "variant", ["onnx-fp32", "onnx-int8", "openvino-fp16", "openvino-int8", "litert-fp32", "litert-int8"]
)
def test_the_shipped_files_tell_runtime_and_precision(model: str, variant: str) -> None:
    folder = MODELS / model / "1" / variant
    (file,) = (each for each in folder.iterdir() if each.suffix != ".bin")
    found = read(file)
    assert f"{found.runtime}-{found.precision}" == variant
    assert found.others == (("model.bin",) if found.runtime == "openvino" else ())
    assert [spec.shape[0] for spec in (*found.signature.inputs, *found.signature.outputs)] == [-1, -1]


def test_an_onnx_file_tells_its_exporter_opset_axes_and_labels(tmp_path: Path) -> None:
    model = with_metadata(
        image_classifier(2), names="{0: 'cat', 1: 'dog'}", docs="https://docs.ultralytics.com", imgsz="[320, 480]"
    )
    model.producer_name = "pytorch"
    found = read(save(model, tmp_path / "pets.onnx"))
    assert (found.labels, found.value_range, found.size_px) == (("cat", "dog"), "unit", (320, 480))
    assert found.remarks == ("exporter: pytorch", "opset: ONNX 17", "open dimensions: image[0] (rows)")


def test_files_of_tflite_and_openvino_tell_the_range_by_their_first_operators(tmp_path: Path) -> None:
    (tmp_path / "keras.tflite").write_bytes(rescaling(1 / 127.5, -1.0))
    converted = openvino.convert_model(tmp_path / "keras.tflite")
    openvino.save_model(converted, tmp_path / "keras.xml", compress_to_fp16=True)
    told = {read(tmp_path / name).range_why for name in ("keras.tflite", "keras.xml")}
    assert told == {"the file's first operators compute 0.007843 · x -1"}
    (tmp_path / "plain.tflite").write_bytes(rescaling(1.0, 0.0))
    assert read(tmp_path / "plain.tflite").value_range == ""


def test_half_precision_is_seen_by_the_weights(tmp_path: Path) -> None:
    weights = numpy_helper.from_array(np.ones((4, 3), np.float16), "w")
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, ["n", size]) for name, size in (("x", 4), ("y", 3))
    )
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "half", [x], [y], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert read(save(model, tmp_path / "half.onnx")).precision == "fp16"


def test_external_data_belongs_to_the_file(tmp_path: Path) -> None:
    onnx.save(image_classifier(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert read(tmp_path / "m.onnx").others == ("m.data",)
    (tmp_path / "m.data").unlink()
    assert "refers to m.data, which is missing" in refused(tmp_path / "m.onnx")


@pytest.mark.parametrize("location", ["../m.data", "/etc/passwd"])
def test_external_data_outside_of_the_folder_is_refused(tmp_path: Path, location: str) -> None:
    model = image_classifier()
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
    (tmp_path / "m.data").write_bytes(bytes(4096))
    assert "no path inside its folder" in refused(save(model, tmp_path / "inside" / "m.onnx"))


def test_a_link_to_data_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    onnx.save(
        image_classifier(),
        tmp_path / "inside" / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    shutil.move(tmp_path / "inside" / "m.data", tmp_path / "m.data")
    (tmp_path / "inside" / "m.data").symlink_to(tmp_path / "m.data")
    assert "leads out of the model's folder" in refused(tmp_path / "inside" / "m.onnx")


def test_an_operator_that_no_runtime_has_is_named(tmp_path: Path) -> None:
    model = shaped({"x": [1, 3]}, {"y": [1, 3]}, helper.make_node("Wild", ["x"], ["y"], domain="com.example"))
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    problem = refused(save(model, tmp_path / "m.onnx"))
    assert (
        "no runtime that is installed here has the operator com.example::Wild; export the model without it" in problem
    )


def test_a_model_without_inputs_is_refused(tmp_path: Path) -> None:
    assert "has no inputs, so that no request" in refused(save(shaped({}, {"y": [1, 3]}), tmp_path / "m.onnx"))


def test_a_dimension_of_zero_is_refused(tmp_path: Path) -> None:
    model = shaped({"x": ["n", 0]}, {"y": ["n", 0]}, helper.make_node("Relu", ["x"], ["y"]))
    assert "'x' has the shape [-1, 0]: a dimension of 0 holds nothing" in refused(save(model, tmp_path / "m.onnx"))


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("m.onnx", b"\x3a\xff\xff\xff\xff\x07" + bytes(64), "longer than the message around it"),
        ("m.onnx", b"", "is empty"),
        ("m.onnx", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("m.tflite", b"\xff\xff\xff\x7fTFL3" + bytes(64), "LiteRT cannot open"),
        ("m.xml", b"<net", "OpenVINO cannot read"),
        ("m.ONNX", b"", "capital letters"),
        ("m.dat", b"", "is no model by its suffix; name a .onnx, .xml, .tflite, .gguf file"),
        ("m.PT", b"", "export it: yolo export model=m.PT format=onnx (Ultralytics), or call torch.onnx.export(model, "),
        ("m.h5", b"", "keras.models.load_model('m.h5').export('m.onnx', format='onnx')"),
        ("m.keras", b"", "keras.models.load_model('m.keras').export('m.onnx', format='onnx')"),
        ("model.safetensors", b"", "optimum-cli export onnx --model FOLDER OUTPUT"),
        ("m.joblib", b"", "skl2onnx.to_onnx(model, example_rows)"),
        ("export/saved_model.pb", b"", "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx"),
    ],
)
def test_files_that_are_no_models_are_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    """Also a field that announces 2 GiB, and a root table 2 GiB away."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    assert problem in refused(tmp_path / name)
    assert name.count("/") == 0 or problem in refused((tmp_path / name).parent)


def test_an_absent_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    assert "cannot be read: No such file or directory" in refused(tmp_path / "m.onnx")
