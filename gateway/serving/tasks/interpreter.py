"""Results of a model with a task, as outputs that callers may request: `result`, and the task's own tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensor, Tensors
from gateway.serving.tasks.catalog import task_of
from gateway.serving.tasks.frame import Frame
from gateway.serving.tasks.task import Task

RESULT, PREFIX = "result", "task."
"""Output with the result of each row as JSON, UTF-8; prefix of results whose name an output of the model has."""
ABSENT = -1
"""Value of integers beyond the end of a row's result, when rows of one answer differ in length; other values are 0."""


class Interpreter:
    """Task of one model version, applied to the rows of requests."""

    def __init__(self, task: Task, manifest: ModelManifest) -> None:
        self.manifest, self._task, self._batched = manifest, task, manifest.batched
        self._inputs: Sequence[str] = getattr(task, "inputs", ())
        rows = ROWS if manifest.batched else 1
        specs = (TensorSpec(RESULT, Datatype.BYTES, ()), *task.results)
        taken = {spec.name for spec in manifest.outputs}
        names = [f"{PREFIX}{spec.name}" if spec.name in taken else spec.name for spec in specs]
        self.results = tuple(
            replace(spec, name=name, shape=(rows, *spec.shape)) for spec, name in zip(specs, names, strict=True)
        )
        """Outputs that are results, with their row dimension."""
        self._document, self._tensors = names[0], tuple(zip(names[1:], task.results, strict=True))

    @property
    def described(self) -> ModelManifest:
        """Return the manifest as callers see it: results come first, and are what an answer has by default."""
        names = tuple(spec.name for spec in self.results)
        return replace(self.manifest, outputs=(*self.results, *self.manifest.outputs), answered=names)

    def interpret(
        self, outputs: Tensors, rows: slice | None, inputs: Mapping[str, Tensor], frames: Sequence[Frame]
    ) -> dict[str, Array]:
        """Return the results of a request: of `rows` of a run's outputs (None: of all).

        `inputs` are those of the request, and `frames` the places of its images, one for each row, or none. Raises
        what `Task.interpret` raises.
        """
        own = dict(outputs) if rows is None else {name: array[rows] for name, array in outputs.items()}
        own |= {name: inputs[name].array for name in self._inputs}
        count = len(next(iter(own.values()))) if self._batched else 1
        places = frames or (None,) * count
        results = [self._task.interpret(self._row(own, row), places[row]) for row in range(count)]
        tensors = [result.tensors() for result in results]
        documents = np.empty(len(results), object)
        for row, result in enumerate(results):
            documents[row] = json.dumps(result.document(), ensure_ascii=False, allow_nan=False).encode()
        return {
            self._document: documents,
            **{
                name: _stacked([each[spec.name] for each in tensors], spec.datatype.dtype, len(spec.shape))
                for name, spec in self._tensors
            },
        }

    def _row(self, outputs: Tensors, row: int) -> dict[str, Array]:
        """Return the outputs of one row, without the row dimension, which a model without rows does not have."""
        return {name: array[row, ...] for name, array in outputs.items()} if self._batched else dict(outputs)


def interpreter_of(manifest: ModelManifest) -> Interpreter | None:
    """Return the interpreter of a model, or None if it has no task. Raises ConfigurationError as `task_of` does."""
    task = task_of(manifest)
    return None if task is None else Interpreter(task, manifest)


def _stacked(rows: Sequence[Array], dtype: np.dtype[Any], rank: int) -> Array:
    """Return the arrays of all rows as one, filled up to the largest size of each of `rank` dimensions."""
    largest = [max((row.shape[axis] for row in rows), default=0) for axis in range(rank)]
    whole = np.full((len(rows), *largest), ABSENT if dtype.kind == "i" else 0, dtype)
    for place, row in enumerate(rows):
        parts: tuple[int | slice, ...] = (place, *[slice(size) for size in row.shape])
        whole[parts] = row
    return whole
