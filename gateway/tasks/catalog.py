"""Tasks by the kind that a manifest names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.domain.document import Table
from gateway.domain.manifest import ModelManifest
from gateway.tasks.anomaly import AnomalyDetection
from gateway.tasks.classification import Classification
from gateway.tasks.embedding import Embedding
from gateway.tasks.forecasting import Forecasting
from gateway.tasks.regression import Regression
from gateway.tasks.task import Task
from gateway.tasks.text_recognition import TextRecognition

TaskFactory = Callable[[ModelManifest, Table], Task]
"""Construction of a task from the manifest and the options of its kind. Raises ConfigurationError."""

TASKS: Mapping[str, TaskFactory] = {
    "anomaly-detection": AnomalyDetection,
    "audio-classification": Classification,
    "embedding": Embedding,
    "image-classification": Classification,
    "keyword-spotting": Classification,
    "tabular-classification": Classification,
    "tabular-regression": Regression,
    "text-recognition": TextRecognition,
    "time-series-classification": Classification,
    "time-series-forecasting": Forecasting,
}
