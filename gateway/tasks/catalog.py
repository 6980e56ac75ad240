"""Tasks by the kind that a manifest names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.domain.document import Table
from gateway.domain.manifest import ModelManifest
from gateway.tasks.classification import Classification
from gateway.tasks.task import Task

TaskFactory = Callable[[ModelManifest, Table], Task]
"""Construction of a task from the manifest and the options of its kind. Raises ConfigurationError."""

TASKS: Mapping[str, TaskFactory] = {
    "audio-classification": Classification,
    "image-classification": Classification,
    "keyword-spotting": Classification,
    "tabular-classification": Classification,
    "time-series-classification": Classification,
}
