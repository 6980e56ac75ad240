"""Manifests, options and outputs of vision models, for tests and benches of tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gateway.common.domain.document import Table
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.python310 import tomllib
from gateway.common.domain.tensor import Array, Datatype

COCO = tuple(f"class-{index}" for index in range(80))


YOLOV8_MANIFEST = """schema = 1
name = "{name}"
version = "1"
labels = {labels}
[task]
kind = "object-detection"
head = "yolov8"
[[input]]
name = "images"
datatype = "FP32"
shape = [-1, 3, {side}, {side}]
layout = "NCHW"
preprocess = {{{form}, resize = [{side}, {side}], fit = "letterbox", scale = 0.00392156862745098}}
[[output]]
name = "output0"
datatype = "FP32"
shape = [-1, {rows}, {boxes}]
[[variant]]
name = "onnx-fp32"
runtime = "onnx"
precision = "fp32"
artifacts = [{{path = "model.onnx", sha256 = "{digest}", bytes = {size}}}]
"""


def write_yolov8(folder: Path, content: bytes, labels: Sequence[str], *, form: str, side: int, boxes: int) -> None:
    """Write version 1 of a detector of square images into MODEL/1; `form` are the keys that tell what is decoded."""
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(content)
    facts = {
        "name": folder.parent.name,
        "labels": json.dumps(list(labels)),
        "rows": 4 + len(labels),
        "digest": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    (folder / "manifest.toml").write_text(YOLOV8_MANIFEST.format(form=form, side=side, boxes=boxes, **facts))


def vision_model(
    outputs: Mapping[str, tuple[int, ...]],
    labels: Sequence[str] = COCO,
    size: tuple[int, int] | None = (640, 640),
    *,
    layout: str = "",
    datatype: Datatype = Datatype.FP32,
) -> ModelManifest:
    """Return the manifest of a model with outputs of these shapes per row; `size` is (width, height) of its input."""
    width, height = size or (-1, -1)
    image = TensorSpec("images", Datatype.FP32, (-1, 3, height, width), "NCHW")
    specs = tuple(TensorSpec(name, datatype, (-1, *shape), layout) for name, shape in outputs.items())
    return ModelManifest("detector", "1", (image,), specs, (), labels=tuple(labels))


def options(text: str = "") -> Table:
    """Return the table of options in a manifest, without its kind."""
    return Table(tomllib.loads(text), file="manifest.toml", text=text, name="task")


def yolov8_output(boxes: Array, scores: Array, classes: Array, labels: int = 80, count: int = 8400) -> Array:
    """Return an output [4 + labels, count] with boxes [n, 4] (centre, size) at regular places, zeros elsewhere."""
    output = np.zeros((4 + labels, count), np.float32)
    places = np.linspace(0, count - 1, len(boxes)).astype(int)
    output[:4, places] = boxes.T
    output[4 + classes, places] = scores
    return output


def sparse_yolov8(generator: np.random.Generator, objects: int = 12, around: int = 8) -> Array:
    """Return an output [84, 8400] like that of a real image: `around` candidates near each of `objects`, and noise."""
    output = generator.random((84, 8400), np.float32) * np.float32(0.02)
    output[:4] = generator.random((4, 8400), np.float32) * 600 + 20
    places = generator.permutation(8400)[: objects * around].reshape(objects, around)
    for group in places:
        centre, side = generator.random(2) * 500 + 70, generator.random(2) * 150 + 20
        output[:2, group] = centre[:, np.newaxis] + generator.normal(0, 3, (2, around))
        output[2:4, group] = side[:, np.newaxis] * generator.uniform(0.9, 1.1, (2, around))
        output[4 + generator.integers(80), group] = generator.uniform(0.3, 0.95, around)
    return output
