"""Import of exports of Ultralytics."""

from dataclasses import replace

import pytest
import yaml

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Binding, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Signature
from gateway.workshop.importing.imported import ImportOutcome
from gateway.workshop.importing.release_writer import settled
from gateway.workshop.importing.source import SourceModel
from gateway.workshop.importing.ultralytics import is_ultralytics, read_ultralytics
from tests.simulators.import_sources import (
    CLASSES,
    documents_of,
    ultralytics_metadata,
    write_classifier,
    write_detector,
)


def read(documents):
    assert is_ultralytics(documents)
    return read_ultralytics(documents).models[0]


def test_a_detector(tmp_path):
    write_detector(tmp_path / "yolo11n.onnx", metadata=ultralytics_metadata())
    model = read(documents_of(tmp_path / "yolo11n.onnx"))
    assert (model.name, model.task, model.task_options) == ("yolo11n", "object-detection", {"head": "yolov8"})
    assert model.labels == CLASSES
    keys = model.preprocess["images"]
    assert (keys["fit"], keys["resize"]) == ("letterbox", [8, 8])
    assert keys["scale"] == pytest.approx(1 / 255)
    assert keys["pad_value"] == 114


@pytest.mark.parametrize(("task", "kind", "columns"), [("detect", "object-detection", 7), ("obb", "oriented-boxes", 8)])
def test_tasks_of_boxes_are_accepted(tmp_path, task, kind, columns):
    write_detector(tmp_path / "m.onnx", metadata=ultralytics_metadata(task), columns=columns)
    model = settled(read(documents_of(tmp_path / "m.onnx")))
    assert (model.task, model.task_options) == (kind, {"head": "yolov8"})


@pytest.mark.parametrize(("points", "first"), [(17, "nose"), (5, "point-0")])
def test_keypoints_have_names(tmp_path, points, first):
    metadata = ultralytics_metadata("pose", kpt_shape=f"[{points}, 3]")
    write_detector(tmp_path / "m.onnx", metadata=metadata, columns=4 + len(CLASSES) + 3 * points, boxes=500)
    model = settled(read(documents_of(tmp_path / "m.onnx")))
    assert (model.task, model.task_options["keypoints"][0]) == ("keypoints", first)


def test_segmentation_needs_its_prototypes(tmp_path):
    write_detector(tmp_path / "m.onnx", metadata=ultralytics_metadata("segment"))
    model = read(documents_of(tmp_path / "m.onnx"))
    assert (model.task, model.task_options) == ("instance-segmentation", {"head": "yolov8"})
    assert "needs a model with two outputs" in settled(model).findings[-1].text


def test_a_classifier_sees_the_centre(tmp_path):
    write_classifier(tmp_path / "m.onnx", metadata=ultralytics_metadata("classify"))
    model = read(documents_of(tmp_path / "m.onnx"))
    assert (model.task, model.preprocess["pixel_values"]["fit"]) == ("image-classification", "crop")


@pytest.mark.parametrize(
    ("metadata", "shape"),
    [({"args": "{'nms': True}"}, (7, 12)), ({}, (300, 6)), ({"nms": "True"}, (300, 6))],
)
def test_suppression_inside_the_model(tmp_path, metadata, shape):
    columns, boxes = shape
    write_detector(tmp_path / "m.onnx", metadata=ultralytics_metadata(**metadata), columns=columns, boxes=boxes)
    assert read(documents_of(tmp_path / "m.onnx")).task_options == {"head": "end-to-end"}


def with_openvino(tmp_path, **changes):
    """Return an ONNX export with its folder of OpenVINO, whose tensors have other names."""
    write_detector(tmp_path / "m.onnx", metadata=ultralytics_metadata())
    folder = tmp_path / "m_openvino_model"
    folder.mkdir()
    metadata = {"author": "Ultralytics", "task": "detect", "imgsz": [8, 8], "names": dict(enumerate(CLASSES))}
    metadata |= {"args": {"half": False, "int8": False, "nms": False}, **changes}
    (folder / "metadata.yaml").write_text(yaml.safe_dump(metadata, sort_keys=False))
    for name in ("m.xml", "m.bin"):
        (folder / name).touch()
    documents = documents_of(tmp_path)
    x, y = TensorSpec("x", Datatype.FP32, (1, 3, 8, 8)), TensorSpec("y", Datatype.FP32, (1, 7, 12))
    path = "m_openvino_model/m.xml"
    twin = SourceModel(path, "openvino", Signature((x,), (y,)), ("m_openvino_model/m.bin",))
    return replace(documents, models={**documents.models, path: twin})


def test_two_exports_are_variants(tmp_path):
    model = read(with_openvino(tmp_path))
    assert [each.name for each in model.variants] == ["onnx-fp32", "openvino-fp32"]
    assert model.variants[1].bind == {"images": Binding("x"), "output0": Binding("y")}
    assert model.variants[1].others == ("m_openvino_model/m.bin",)


def test_the_folder_of_openvino_alone(tmp_path):
    documents = with_openvino(tmp_path)
    (path,) = [path for path in documents.models if path.endswith(".xml")]
    model = read(replace(documents, models={path: documents.models[path]}))
    assert (model.name, model.labels, model.task_options) == ("m", CLASSES, {"head": "yolov8"})


def test_exports_of_other_classes_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"has other classes than m.onnx"):
        read(with_openvino(tmp_path, names={0: "car"}))


def test_a_tflite_file_has_normalised_coordinates(tmp_path):
    documents = with_openvino(tmp_path)
    (twin,) = [model for path, model in documents.models.items() if path.endswith(".xml")]
    model = read(replace(documents, models={twin.path: replace(twin, runtime="litert")}))
    assert model.task_options == {"head": "yolov8", "coordinates": "normalised"}


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({"task": "track"}, "task: must be one of detect"),
        ({"names": "{0: 'a', 2: 'b'}"}, "names: must number 2 classes from 0"),
        ({"names": "nonsense("}, "names: must name the classes"),
        ({"names": "(" * 5000}, "names: must name the classes"),
        ({"imgsz": "[640]"}, "imgsz: must be"),
        ({"imgsz": "[640, -1]"}, "imgsz: must be"),
        ({"imgsz": "[True, True]"}, "imgsz: must be"),
        ({"task": "pose", "kpt_shape": "[17]"}, "kpt_shape: must be"),
        ({"task": "pose", "kpt_shape": "[0, 3]"}, "kpt_shape: must be 1 to 1000 points"),
    ],
)
def test_wrong_metadata_is_an_error(tmp_path, metadata, problem):
    write_detector(tmp_path / "m.onnx", metadata=ultralytics_metadata(**metadata))
    with pytest.raises(ConfigurationError, match=problem):
        read(documents_of(tmp_path / "m.onnx"))


def test_an_input_of_another_size_is_reported(tmp_path):
    write_detector(tmp_path / "m.onnx", metadata=ultralytics_metadata(imgsz="[16, 16]"))
    model = read(documents_of(tmp_path / "m.onnx"))
    assert model.preprocess == {}
    assert any(finding.outcome is ImportOutcome.MISSING for finding in model.findings)
