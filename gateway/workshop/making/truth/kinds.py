"""Kinds of truth, by the task of a model. Pure functions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from gateway.common.domain.manifest import ModelManifest
from gateway.serving.tasks.anomaly import AnomalyDetection
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.embedding import Embedding
from gateway.serving.tasks.forecasting import Forecasting
from gateway.serving.tasks.instance_segmentation import InstanceSegmentation
from gateway.serving.tasks.keypoints import Keypoints
from gateway.serving.tasks.object_detection import ObjectDetection
from gateway.serving.tasks.oriented_boxes import OrientedBoxes
from gateway.serving.tasks.regression import Regression
from gateway.serving.tasks.semantic_segmentation import SemanticSegmentation
from gateway.serving.tasks.text_recognition import TextRecognition


class TruthKind(enum.Enum):
    """Kind of what a sample truly is; the value names it for people."""

    CLASSES = "labels"
    BOXES = "boxes"
    ORIENTED = "oriented boxes"
    MASKS = "masks"
    KEYPOINTS = "keypoints"
    CLASS_MAPS = "masks of classes"
    TEXTS = "texts"
    FLAGS = "labels 0 and 1"
    VALUES = "values"
    FORECASTS = "values after the window"
    NONE = ""


OBJECTS = frozenset({TruthKind.BOXES, TruthKind.ORIENTED, TruthKind.MASKS, TruthKind.KEYPOINTS})
"""Kinds that are any number of objects in an image."""
_KINDS: Mapping[Any, TruthKind] = {
    AnomalyDetection: TruthKind.FLAGS,
    Embedding: TruthKind.NONE,
    Forecasting: TruthKind.FORECASTS,
    InstanceSegmentation: TruthKind.MASKS,
    Keypoints: TruthKind.KEYPOINTS,
    ObjectDetection: TruthKind.BOXES,
    OrientedBoxes: TruthKind.ORIENTED,
    Regression: TruthKind.VALUES,
    SemanticSegmentation: TruthKind.CLASS_MAPS,
    TextRecognition: TruthKind.TEXTS,
}


def truth_kind(manifest: ModelManifest) -> TruthKind:
    """Return the kind of a model's truth; classes for a model without a table `[task]`."""
    if manifest.task_options is None:
        return TruthKind.CLASSES
    return _KINDS.get(TASKS.get(manifest.task), TruthKind.CLASSES)
