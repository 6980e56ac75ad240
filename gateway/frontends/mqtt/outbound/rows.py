"""Values of one row of an answer, by name: what templates and rules read. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.domain.tensor import Array, Tensor
from gateway.frontends.mqtt.outbound.contents import ResultPlan, best_indices, finite, score_rows


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Scores of one row (None: there is no score vector), and its part of each output."""

    plan: ResultPlan
    scores: Array | None
    outputs: Mapping[str, Array]

    @property
    def label(self) -> str | None:
        """Return the best class; None if there is none or a score is NaN."""
        return next(iter(self.best_labels(1)), None)

    @property
    def score(self) -> float | None:
        """Return the score of the best class."""
        return None if self.scores is None else finite(self.scores.max())

    @property
    def anomalous(self) -> bool | None:
        """Return the verdict of anomaly detection; None without one."""
        return None

    def best_labels(self, count: int) -> list[str]:
        """Return the labels of the `count` best classes, best first; none if a score is NaN."""
        return [] if self.scores is None else [self.plan.label(index) for index in best_indices(self.scores, count)]

    def score_of(self, label: str) -> float | None:
        """Return the score of the class `label`; None if there is no such class."""
        index = self.plan.index(label)
        return None if self.scores is None or index is None else finite(self.scores[index])

    @property
    def value(self) -> str | float | None:
        """Return the only value of the answer; None if there are scores or several values."""
        if self.scores is not None or len(self.outputs) != 1:
            return None
        return self.output(next(iter(self.outputs)))

    def output(self, name: str) -> str | float | None:
        """Return the only element of the output `name`; None if it has another number of elements, or is not finite."""
        array = self.outputs.get(name)
        if array is None or array.size != 1:
            return None
        element = array.ravel()[0]
        if array.dtype.kind != "O":
            return finite(element)
        return element.decode(errors="replace") if isinstance(element, bytes) else str(element)


def read_rows(plan: ResultPlan, outputs: Mapping[str, Tensor], count: int) -> list[ResultRow]:
    """Return the rows of an answer; one if its outputs do not have `count` rows each."""
    arrays = {name: tensor.array for name, tensor in outputs.items()}
    if not plan.batched or any(array.shape[:1] != (count,) for array in arrays.values()):
        count = 1
    scores = score_rows(plan, outputs, count)
    return [
        ResultRow(
            plan,
            None if scores is None else scores[row],
            arrays if count == 1 else {name: array[row] for name, array in arrays.items()},
        )
        for row in range(count)
    ]
