"""Tasks by the kind that a manifest names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.domain.document import Table
from gateway.domain.manifest import ModelManifest
from gateway.tasks.instance_segmentation import InstanceSegmentation
from gateway.tasks.object_detection import ObjectDetection
from gateway.tasks.semantic_segmentation import SemanticSegmentation
from gateway.tasks.task import Task

TaskFactory = Callable[[ModelManifest, Table], Task]
"""Construction of a task from the manifest and the options of its kind. Raises ConfigurationError."""

TASKS: Mapping[str, TaskFactory] = {
    "instance-segmentation": InstanceSegmentation,
    "object-detection": ObjectDetection,
    "semantic-segmentation": SemanticSegmentation,
}
