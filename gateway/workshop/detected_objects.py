"""Objects of an image, from the tensors of a task's result. Pure functions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gateway.domain.tensor import Tensors
from gateway.workshop.metrics.average_precision import Objects, Shapes
from gateway.workshop.metrics.boxes import Boxes, areas
from gateway.workshop.metrics.masks import Masks
from gateway.workshop.metrics.points import AREA_OF_BOX, PointShapes
from gateway.workshop.metrics.polygons import Polygons

LEAST_POINT_SCORE = 0.5
"""Score from which on a point that was found counts as visible, where it is what others are compared with."""


def found_boxes(found: Tensors) -> Objects:
    """Return the objects with their boxes."""
    return _objects(found, Boxes(found["boxes"].astype(np.float64)))


def found_polygons(found: Tensors) -> Objects:
    """Return the objects with the corners of their oriented boxes."""
    return _objects(found, Polygons(found["corners"].astype(np.float64)))


def found_masks(found: Tensors) -> Objects:
    """Return the objects with their masks."""
    height, width = found["mask_size"].tolist()
    parts = [found["mask_counts"][start:end] for start, end in pairwise(found["mask_offsets"].tolist())]
    return _objects(found, Masks((height, width), parts))


def found_points(found: Tensors) -> Objects:
    """Return the objects with their points, in pixels."""
    points, boxes = found["keypoints"].astype(np.float64), found["boxes"].astype(np.float64)
    has_scores = points.shape[2] > 2
    visible = points[..., 2] >= LEAST_POINT_SCORE if has_scores else np.ones(points.shape[:2], bool)
    return _objects(found, PointShapes(points[..., :2], visible, AREA_OF_BOX * areas(boxes), boxes))


def _objects(found: Tensors, shapes: Shapes) -> Objects:
    classes = found["classes"]
    return Objects(classes, found["scores"].astype(np.float64), np.zeros(len(classes), bool), shapes)
