"""Annotated objects of one image in pixels, from any form of annotations to what is compared. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.common.domain.tensor import Array
from gateway.workshop.making.metrics.average_precision import Objects, Shapes
from gateway.workshop.making.metrics.boxes import Boxes
from gateway.workshop.making.metrics.masks import Masks
from gateway.workshop.making.metrics.points import AREA_OF_BOX, PointShapes
from gateway.workshop.making.metrics.polygons import Polygons
from gateway.workshop.making.truth.kinds import TruthKind


@dataclass(frozen=True, slots=True)
class PlacedObject:
    """Object of an image: its class, box (x1, y1, x2, y2), and what else its annotation tells.

    `corners` [4, 2], `counts` of its mask, `points` [k, 3] (x, y, visible), `area` in pixels (0: not told).
    """

    label: int
    box: Array
    is_crowd: bool = False
    corners: Array | None = None
    counts: Array | None = None
    points: Array | None = None
    area: float = 0.0


def as_objects(kind: TruthKind, placed: Sequence[PlacedObject], size: tuple[int, int], points: int) -> Objects:
    """Return the objects of an image of `size` (height, width) for one kind of task.

    `points` is the number of key points of the model. Raises ValueError if an annotation lacks what the kind needs.
    """
    shapes, crowd = _shapes(kind, placed, size, points), np.array([each.is_crowd for each in placed], bool)
    if isinstance(shapes, PointShapes):
        crowd |= ~shapes.visible.any(axis=1)  # COCO: an object without points is not expected, and may be found
    return Objects(np.array([each.label for each in placed], np.int64), np.ones(len(placed)), crowd, shapes)


def _shapes(kind: TruthKind, placed: Sequence[PlacedObject], size: tuple[int, int], points: int) -> Shapes:
    boxes = np.array([each.box for each in placed], np.float64).reshape(-1, 4)
    match kind:
        case TruthKind.ORIENTED:
            return Polygons(np.array([_needed(each.corners, "corners") for each in placed]).reshape(-1, 4, 2))
        case TruthKind.MASKS:
            return Masks(size, [_needed(each.counts, "mask") for each in placed])
        case TruthKind.KEYPOINTS:
            found = np.array([_points(each, points) for each in placed]).reshape(-1, points, 3)
            areas = [each.area or AREA_OF_BOX * float(np.prod(each.box[2:] - each.box[:2])) for each in placed]
            return PointShapes(found[..., :2], found[..., 2] > 0, np.array(areas, np.float64), boxes)
        case _:
            return Boxes(boxes)


def _points(each: PlacedObject, count: int) -> Array:
    """Return the points of an object; a crowd has none."""
    points = np.zeros((count, 3)) if each.points is None and each.is_crowd else _needed(each.points, "key points")
    if len(points) != count:
        raise ValueError(f"an object has {len(points)} key points, but the model {count}; name the model's own")
    return points


def _needed(part: Array | None, name: str) -> Array:
    if part is None:
        raise ValueError(f"an object has no {name}, which the task of the model needs; annotate them")
    return part


def bounds(points: Array) -> Array:
    """Return the box of points [k, 2]."""
    return np.concatenate((points.min(axis=0), points.max(axis=0)))
