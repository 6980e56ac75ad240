"""Detector of coloured squares, images of them, and their annotations as COCO and YOLO have them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from PIL import Image

from gateway.common.domain.tensor import Array
from tests.simulators.models_made import shaped

SIDE, CELL = 64, 16
"""Side of the model's input and of a square in it, in pixels."""
COLOURS = ("red", "green", "blue")
STRIDES = (8, 16, 32)
"""Strides of the head; only that of a square finds anything."""
SCALE = 3
"""Size of the images in multiples of the model's input."""


@dataclass(frozen=True, slots=True)
class Square:
    """Square of one colour: its class and its box (x1, y1, x2, y2) in pixels of the image."""

    label: int
    box: tuple[int, int, int, int]


def square_detector(*, mixed: bool = False) -> onnx.ModelProto:
    """Return a YOLOv8 head [rows, 7, 84]: the score of a colour in a cell is its mean there.

    `mixed`: coordinates and scores leave one layer with weights, so that in 8 bits they share a scale.
    """
    nodes, weights = [], {}
    for stride in STRIDES:
        kernel = np.zeros((3, 3, stride, stride), np.float32)
        for colour in range(3) if stride == CELL else ():
            kernel[colour] = -1 / CELL**2  # white and grey are no colour
            kernel[colour, colour] = 1 / CELL**2
        weights[f"kernel{stride}"] = kernel
        nodes += [
            helper.make_node("Conv", ["images", f"kernel{stride}"], [f"map{stride}"], strides=[stride, stride]),
            helper.make_node("Relu", [f"map{stride}"], [f"positive{stride}"]),
            helper.make_node("Reshape", [f"positive{stride}", "flat"], [f"scores{stride}"]),
        ]
    weights["cells"] = np.concatenate([_cells(stride) for stride in STRIDES], axis=1)[np.newaxis]
    weights["none"] = np.zeros((1, 1), np.float32)
    nodes += [
        helper.make_node("Concat", [f"scores{stride}" for stride in STRIDES], ["scores"], axis=2),
        helper.make_node("ReduceSum", ["scores", "axes"], ["sum"], keepdims=1),
        helper.make_node("Mul", ["sum", "none"], ["nothing"]),
        helper.make_node("Add", ["nothing", "cells"], ["boxes"]),
        helper.make_node("Concat", ["boxes", "scores"], ["joined" if mixed else "output0"], axis=1),
    ]
    if mixed:
        weights["same"] = np.eye(84, dtype=np.float32)
        nodes += [helper.make_node("MatMul", ["joined", "same"], ["output0"])]
    initializer = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    initializer += [
        numpy_helper.from_array(np.array([0, 3, -1], np.int64), "flat"),
        numpy_helper.from_array(np.array([1, 2], np.int64), "axes"),
    ]
    return shaped({"images": ["n", 3, SIDE, SIDE]}, {"output0": ["n", 7, 84]}, *nodes, initializer=initializer)


def _cells(stride: int) -> Array:
    """Return the centres and sizes [4, cells] of the cells of a stride."""
    count = SIDE // stride
    y, x = (each.ravel() * stride + stride / 2 for each in np.mgrid[:count, :count])
    return np.stack((x, y, np.full(len(x), stride), np.full(len(x), stride))).astype(np.float32)


def draw_squares(folder: Path, count: int, seed: int = 0) -> dict[str, list[Square]]:
    """Write images of squares to `folder`, and return the squares of each by the name of its file.

    Some squares are so pale that their score is near the threshold of a detection.
    """
    random, side = np.random.default_rng(seed), CELL * SCALE
    folder.mkdir(parents=True, exist_ok=True)
    drawn: dict[str, list[Square]] = {}
    for index in range(count):
        pixels, squares = np.full((SIDE * SCALE, SIDE * SCALE, 3), 40, np.uint8), []
        for place in random.permutation(16)[: random.integers(0, 5)]:
            (row, column), colour = divmod(int(place), 4), int(random.integers(3))
            part = pixels[row * side : (row + 1) * side, column * side : (column + 1) * side]
            part[:] = 0
            part[..., colour] = random.integers(80, 256)
            squares.append(Square(colour, (column * side, row * side, (column + 1) * side, (row + 1) * side)))
        name = f"{index:03}.png"
        Image.fromarray(pixels).save(folder / name)
        drawn[name] = squares
    return drawn


def coco_of(drawn: dict[str, list[Square]], names: tuple[str, ...] = COLOURS) -> str:
    """Return the annotations as COCO's JSON; categories have the ids 1, 3, 5."""
    images = [{"id": number, "file_name": name} for number, name in enumerate(drawn, 1)]
    annotations = [
        {
            "id": len(names) * number + place,
            "image_id": number,
            "category_id": 2 * square.label + 1,
            "bbox": [x1, y1, x2 - x1, y2 - y1],
            "area": (x2 - x1) * (y2 - y1),
            "iscrowd": 0,
        }
        for number, squares in enumerate(drawn.values(), 1)
        for place, square in enumerate(squares)
        for x1, y1, x2, y2 in [square.box]
    ]
    categories = [{"id": 2 * number + 1, "name": name} for number, name in enumerate(names)]
    return json.dumps({"images": images, "annotations": annotations, "categories": categories})


def yolo_of(squares: list[Square]) -> str:
    """Return the annotations of an image as lines of YOLO."""
    side = SIDE * SCALE
    return "".join(
        f"{square.label} {(x1 + x2) / 2 / side:.6f} {(y1 + y2) / 2 / side:.6f} {(x2 - x1) / side:.6f} "
        f"{(y2 - y1) / side:.6f}\n"
        for square in squares
        for x1, y1, x2, y2 in [square.box]
    )
