"""Tasks by the kind that a manifest names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.domain.document import Table
from gateway.domain.manifest import ModelManifest
from gateway.tasks.instance_segmentation import InstanceSegmentation
from gateway.tasks.keypoints import Keypoints
from gateway.tasks.object_detection import ObjectDetection
from gateway.tasks.oriented_boxes import OrientedBoxes
from gateway.tasks.semantic_segmentation import SemanticSegmentation
from gateway.tasks.task import Task

TaskFactory = Callable[[ModelManifest, Table], Task]
"""Construction of a task from the manifest and the options of its kind. Raises ConfigurationError."""

TASKS: Mapping[str, TaskFactory] = {
    "instance-segmentation": InstanceSegmentation,
    "keypoints": Keypoints,
    "object-detection": ObjectDetection,
    "oriented-boxes": OrientedBoxes,
    "semantic-segmentation": SemanticSegmentation,
}
