"""Distances of results from the answers of packages. Infinite: they say different things."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gateway.common.domain.tensor import Array


def text(result: dict[str, Any], answer: tuple[str, float | None]) -> float:
    """Return the difference of the scores of two equal texts; None: the package gives no score of the same kind."""
    expected, score = answer
    if result["text"] != expected:
        return math.inf
    return 0.0 if score is None else abs((result["score"] or 0.0) - score)


def best_class(result: dict[str, Any], answer: tuple[str, float]) -> float:
    """Return the difference of the scores of two equal labels."""
    label, score = answer
    return abs(result["score"] - score) if result["label"] == label else math.inf


def score_of(label: str) -> Any:
    """Return the distance of a label's score from the package's."""

    def distance(result: dict[str, Any], answer: float) -> float:
        scores = {each["label"]: each["score"] for each in result["classes"]}
        return abs(scores[label] - answer)

    return distance


def value(result: dict[str, Any], answer: float) -> float:
    """Return the relative difference of a regression's value."""
    found = float(result["values"][0]["value"])
    return abs(found - answer) / max(abs(answer), 1e-9)


def mask(result: dict[str, Any], answer: Array) -> float:
    """Return the share of the pixels that only one side counts to the first class."""
    counts = result["classes"][0]["mask"]["counts"] if result["classes"] else [answer.size]
    height, width = result["size"]
    found = np.repeat(np.arange(len(counts)) % 2, counts).reshape(width, height).T.astype(bool)
    return float(np.mean(found != answer)) if found.shape == answer.shape else math.inf


def boxes(result: dict[str, Any], answer: list[tuple[str, float, Array]]) -> float:
    """Return the least intersection over union, subtracted from 1, of the boxes of both sides, matched by label."""
    ours = [(each["label"], np.array(each["box"], float)) for each in result["detections"]]
    theirs = [(label, box) for label, _, box in answer]
    if len(ours) != len(theirs):
        return math.inf
    if not ours:
        return 0.0
    return max(
        min((1 - overlap(box, other) for name, other in theirs if name == label), default=1.0) for label, box in ours
    )


def corners(result: dict[str, Any], answer: Array) -> float:
    """Return the greatest distance in pixels of the corners of oriented boxes, matched by the nearest."""
    return _farthest([each["corners"] for each in result["detections"]], answer)


def points(result: dict[str, Any], answer: Array) -> float:
    """Return the greatest distance in pixels of boxes and their points. Answers begin with the corners of the box."""
    found = [
        [each["box"][:2], each["box"][2:], *([point["x"], point["y"]] for point in each["keypoints"])]
        for each in result["detections"]
    ]
    return _farthest(found, answer)


def _farthest(found: list[Any], answer: Array) -> float:
    if len(found) != len(answer):
        return math.inf
    ours = np.array(found, float)
    return max((float(np.abs(ours - other).max(axis=(1, 2)).min()) for other in answer), default=0.0)


def overlap(one: Array, other: Array) -> float:
    """Return the intersection over union of two boxes x1, y1, x2, y2."""
    sides = np.clip(np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2]), 0, None)
    common = float(sides.prod())
    areas = [float(np.prod(box[2:] - box[:2])) for box in (one, other)]
    return common / max(sum(areas) - common, 1e-9)
