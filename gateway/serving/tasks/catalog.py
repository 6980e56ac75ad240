"""Tasks by the kind that a manifest names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.common.domain.document import Table
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest
from gateway.serving.tasks.anomaly import AnomalyDetection
from gateway.serving.tasks.classification import Classification
from gateway.serving.tasks.embedding import Embedding
from gateway.serving.tasks.forecasting import Forecasting
from gateway.serving.tasks.instance_segmentation import InstanceSegmentation
from gateway.serving.tasks.keypoints import Keypoints
from gateway.serving.tasks.object_detection import ObjectDetection
from gateway.serving.tasks.oriented_boxes import OrientedBoxes
from gateway.serving.tasks.regression import Regression
from gateway.serving.tasks.semantic_segmentation import SemanticSegmentation
from gateway.serving.tasks.task import Task
from gateway.serving.tasks.text_recognition import TextRecognition

MANIFEST = "manifest.toml"
TaskFactory = Callable[[ModelManifest, Table], Task]
"""Construction of a task from the manifest and the options of its kind. Raises ConfigurationError."""

TASKS: Mapping[str, TaskFactory] = {
    "anomaly-detection": AnomalyDetection,
    "audio-classification": Classification,
    "embedding": Embedding,
    "image-classification": Classification,
    "instance-segmentation": InstanceSegmentation,
    "keypoints": Keypoints,
    "keyword-spotting": Classification,
    "object-detection": ObjectDetection,
    "oriented-boxes": OrientedBoxes,
    "semantic-segmentation": SemanticSegmentation,
    "tabular-classification": Classification,
    "tabular-regression": Regression,
    "text-classification": Classification,
    "text-recognition": TextRecognition,
    "time-series-classification": Classification,
    "time-series-forecasting": Forecasting,
}


def task_of(manifest: ModelManifest) -> Task | None:
    """Return the task of a model, or None if its manifest has no table `[task]`.

    Raises ConfigurationError for an unknown kind, and for options and outputs that do not fit it.
    """
    if manifest.task_options is None:
        return None
    make = TASKS.get(manifest.task)
    if make is None:
        problem = f"{manifest.task!r:.80} is no known kind; known ones are {', '.join(sorted(TASKS))}"
        raise ConfigurationError(problem, file=MANIFEST, table="task", key="kind")
    options = Table(dict(manifest.task_options), file=MANIFEST, name="task")
    task = make(manifest, options)
    options.finish()
    return task
