"""Cost of the interpretation of outputs, next to code as it is written by hand with numpy and OpenCV.

`python -m tests.performance.tasks [--core N] [--rounds N]`: medians in µs on one core, one call of each in turn.
Outputs have the shape of YOLOv8n at 640 × 640 pixels, [84, 8400]: "sparse" is like a real image (12 objects, 8
candidates each), "dense" is random, with every row above the threshold and 1000 candidates compared. Sparse detections
that differ from those by hand are an error. The code by hand compares all 8400 dense boxes, because such code has no
bound: dense figures show what the bound saves, not which suppression is faster.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import cv2
import numpy as np

from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.tasks.frame import place
from gateway.serving.tasks.instance_segmentation import InstanceSegmentation
from gateway.serving.tasks.keypoints import Keypoints
from gateway.serving.tasks.object_detection import ObjectDetection
from gateway.serving.tasks.oriented_boxes import OrientedBoxes
from gateway.serving.tasks.semantic_segmentation import SemanticSegmentation
from gateway.serving.tasks.task import Task
from tests.simulators.vision_models import options, sparse_yolov8, vision_model

WARM_UP = 3
SLOW_ROUNDS = 5
"""Rounds of the loop over rows, which takes a hundred times as long."""
FRAME = place("letterbox", (1920, 1080), (640, 640))
THRESHOLD, IOU, MOST = 0.25, 0.45, 300
Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Result:
    """Median of one call in µs."""

    what: str
    median_us: float


# ---- by hand ------------------------------------------------------------------------------------------------------
def vectorised(output: Array) -> list[list[float]]:
    """Return boxes as numpy code of the usual kind does: transposed, filtered, suppressed by OpenCV, by class."""
    rows = output.T
    scores = rows[:, 4:].max(axis=1)
    rows, scores = rows[scores >= THRESHOLD], scores[scores >= THRESHOLD]
    classes = rows[:, 4:].argmax(axis=1)
    boxes = rows[:, :4].copy()
    boxes[:, :2] -= boxes[:, 2:] / 2
    kept = cv2.dnn.NMSBoxesBatched(boxes.tolist(), scores.tolist(), classes.tolist(), THRESHOLD, IOU)
    return [_original(boxes[index]) for index in list(kept)[:MOST]]


def by_rows(output: Array) -> list[list[float]]:
    """Return boxes as code of the usual kind does that visits each row, with OpenCV for the best class."""
    boxes, scores, classes = [], [], []
    for row in output.T:
        _, score, _, (_, number) = cv2.minMaxLoc(row[4:])
        if score >= THRESHOLD:
            boxes.append([row[0] - row[2] / 2, row[1] - row[3] / 2, row[2], row[3]])
            scores.append(score)
            classes.append(number)
    kept = cv2.dnn.NMSBoxesBatched(boxes, scores, classes, THRESHOLD, IOU)
    return [_original(np.array(boxes[index])) for index in list(kept)[:MOST]]


def _original(box: Array) -> list[float]:
    corners = FRAME.boxes(np.array([[box[0], box[1], box[0] + box[2], box[1] + box[3]]]))
    return [float(side) for side in corners[0]]


# ---- measurement --------------------------------------------------------------------------------------------------
def medians(calls: Mapping[str, Call], rounds: int) -> Iterator[Result]:
    """Yield the median of each call; the calls take turns, so that what disturbs one disturbs all.

    Their order differs from turn to turn: a call that follows a similar one finds code and values in the cache.
    """
    taken: dict[str, list[int]] = {what: [] for what in calls}
    order, generator = list(calls.items()), random.Random(0)
    for turn in range(WARM_UP + rounds):
        generator.shuffle(order)
        for what, call in order:
            began_ns = time.perf_counter_ns()
            call()
            if turn >= WARM_UP:
                taken[what].append(time.perf_counter_ns() - began_ns)
    return (Result(what, statistics.median(values) / 1000) for what, values in taken.items())


def detection(rounds: int) -> Iterator[Result]:
    """Yield detection by the task and by hand."""
    generator = np.random.default_rng(20)
    dense = generator.random((84, 8400), np.float32)
    dense[:4] *= 600
    task = ObjectDetection(vision_model({"output0": (84, 8400)}), options())
    for kind, output in (("sparse", sparse_yolov8(generator)), ("dense", dense)):
        outputs = {"output0": output}
        calls: dict[str, Call] = {
            f"{kind}: object-detection": lambda outputs=outputs: task.interpret(outputs, FRAME),
            f"{kind}: object-detection and document": lambda outputs=outputs: task.interpret(outputs, FRAME).document(),
            f"{kind}: by hand, vectorised, OpenCV": lambda output=output: vectorised(output),
        }
        if kind == "sparse":  # bounds decide in the other one
            check(task, output)
        yield from medians(calls, rounds if kind == "sparse" else min(rounds, SLOW_ROUNDS * 4))
        slow: dict[str, Call] = {f"{kind}: by hand, row by row, OpenCV": lambda output=output: by_rows(output)}
        yield from medians(slow, min(rounds, SLOW_ROUNDS))


def check(task: ObjectDetection, output: Array) -> None:
    """Raise ValueError if the task and the code by hand find different boxes."""
    found = task.interpret({"output0": output}, FRAME).tensors()["boxes"]
    by_hand = np.array([box for box in vectorised(output) if box[2] > box[0] and box[3] > box[1]])
    if found.shape != by_hand.shape or np.abs(np.sort(found, axis=0) - np.sort(by_hand, axis=0)).max() > 0.1:
        raise ValueError(f"{len(found)} boxes of the task are not the {len(by_hand)} boxes by hand")


def layouts(rounds: int) -> Iterator[Result]:
    """Yield the maximum over the classes, along memory and in a transposed copy."""
    output = np.random.default_rng(1).random((84, 8400), np.float32)
    calls: dict[str, Call] = {
        "best class: rows as they lie": lambda: output[4:].max(axis=0),
        "best class: transposed copy": lambda: np.ascontiguousarray(output.T)[:, 4:].max(axis=1),
    }
    yield from medians(calls, rounds)


def others(rounds: int) -> Iterator[Result]:
    """Yield the other tasks on sparse outputs."""
    generator = np.random.default_rng(20)
    sparse, noise = sparse_yolov8(generator), generator.normal(0, 1, (51, 8400)).astype(np.float32)
    coarse = generator.normal(0, 1, (32, 10, 10)).astype(np.float32)
    prototypes = np.stack([cv2.resize(each, (160, 160), interpolation=cv2.INTER_CUBIC) for each in coarse])
    names = "keypoints = [" + ", ".join(f'"{index}"' for index in range(17)) + "]"
    segmented: Tensors = {"output0": np.concatenate((sparse, noise[:32])), "output1": prototypes}
    posed, turned = {"output0": np.concatenate((sparse, noise))}, {"output0": np.concatenate((sparse, noise[:1]))}
    logits = np.stack([cv2.resize(each, (128, 128), interpolation=cv2.INTER_CUBIC) for each in coarse[:21]])
    models: dict[str, tuple[Task, Tensors]] = {
        "instance-segmentation": (
            InstanceSegmentation(vision_model({"output0": (116, 8400), "output1": (32, 160, 160)}), options()),
            segmented,
        ),
        "keypoints": (Keypoints(vision_model({"output0": (135, 8400)}), options(names)), posed),
        "oriented-boxes": (OrientedBoxes(vision_model({"output0": (85, 8400)}), options()), turned),
        "semantic-segmentation, 21 classes of 128 × 128, nearest": (_semantic("nearest"), {"y": logits}),
        "semantic-segmentation, 21 classes of 128 × 128, bilinear": (_semantic("bilinear"), {"y": logits}),
    }
    calls: dict[str, Call] = {
        f"{name} and document": lambda task=task, outputs=outputs: task.interpret(outputs, FRAME).document()
        for name, (task, outputs) in models.items()
    }
    yield from medians(calls, max(1, rounds // 10))


def _semantic(resize: str) -> SemanticSegmentation:
    labels = [f"{index}" for index in range(21)]
    return SemanticSegmentation(vision_model({"y": (21, 128, 128)}, labels), options(f'resize = "{resize}"'))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="processor to run on")
    parser.add_argument("--rounds", type=int, default=300, help="calls of each")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})
    cv2.setNumThreads(1)
    print("| what | median, µs |\n| --- | --- |")
    for measure in (detection, layouts, others):
        for result in measure(arguments.rounds):
            print(f"| {result.what} | {result.median_us:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
