"""Interface of all tasks. Each task is a file of this package, and a line in `catalog`."""

from __future__ import annotations

from typing import Any, Protocol

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Tensors
from gateway.serving.tasks.frame import Frame


class TaskResult(Protocol):
    """Result of one row of a request, in two forms of one computation."""

    def document(self) -> dict[str, Any]:
        """Return the result for people: values that JSON can carry, with labels and pixels of the original image."""

    def tensors(self) -> dict[str, Array]:
        """Return the result for programs: the arrays that `Task.results` declares."""


class Task(Protocol):
    """Interpretation of the outputs of one model. Construction checks that the model's outputs fit the task.

    `results` declares the tensors of a result, without a row dimension; -1 is a size that depends on the data.
    """

    @property
    def results(self) -> tuple[TensorSpec, ...]: ...

    def interpret(self, outputs: Tensors, frame: Frame | None) -> TaskResult:
        """Interpret one row. `outputs` are the model's outputs of that row, without the row dimension.

        `frame` is the place of the original image in the model's input. None: the input was no image, or its sender
        prepared it; coordinates are then pixels of the input. Raises RequestError UNSUPPORTED for outputs that are not
        as declared.
        """


class InputReader(Task, Protocol):
    """Task that needs inputs of the model, too: `interpret` finds them among `outputs`, by their names.

    They are as the model received them (images decoded), for the same row. No output has the name of such an input.
    """

    @property
    def inputs(self) -> tuple[str, ...]: ...
