"""Values of one row of an answer, by name: what templates and rules read. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.common.domain.tensor import Array, Tensor
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan, best_indices, finite, score_rows


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

    def count_of(self, label: str) -> int | None:
        """Return the number of detections, those of `label` unless it is ""; None if the answer has none to count."""
        return None

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


LISTS = ("detections", "classes")
"""Keys of documents whose lists have a label and a score in each place, best first."""


@dataclass(frozen=True, slots=True)
class DocumentRow(ResultRow):
    """Result of a task or a pipeline for one row. A label that a list lacks has the score 0: it was not found.

    Outputs of a pipeline may have the names of keys of tasks, and any value.
    """

    document: Mapping[str, Any]

    @property
    def label(self) -> str | None:
        """Return the label of the document, or of its best part."""
        return next(iter(self.best_labels(1)), None)

    @property
    def score(self) -> float | None:
        """Return the score of the document, or of its best part."""
        found = self._number("score")
        return next((score for _, score in self._labels()), None) if found is None else found

    @property
    def anomalous(self) -> bool | None:
        """Return the verdict of anomaly detection, by the manifest's threshold; None if the score is NaN."""
        found: bool | None = self.document.get("anomalous")
        return found

    def best_labels(self, count: int) -> list[str]:
        """Return the first `count` different labels, best first."""
        return list(dict.fromkeys(label for label, _ in self._labels()))[:count]

    def score_of(self, label: str) -> float | None:
        """Return the highest score of a label; None if the document has no labels."""
        scores = [score for name, score in self._labels() if name == label]
        return max(scores, default=0.0 if any(key in self.document for key in (*LISTS, "label")) else None)

    def count_of(self, label: str) -> int | None:
        """Return the number of detections, those of `label` unless it is ""; None for another task."""
        found = self.document.get("detections")
        if not isinstance(found, list):
            return None
        return sum(part["label"] == label for part in self._parts("detections")) if label else len(found)

    @property
    def value(self) -> str | float | None:
        """Return the only value, the text, the score of an anomaly, the number of detections, or the label."""
        values, detections = [*self._parts("values", "name")], self.count_of("")
        if len(values) == 1:
            return self.output(values[0]["name"])
        for key in ("text", "score") if self.document.keys() & {"text", "anomalous"} else ():
            if key in self.document:
                return _single(self.document[key])
        return self.label if detections is None else float(detections)

    def output(self, name: str) -> str | float | None:
        """Return the value that the document calls `name`, or the only element of the output `name`.

        In the document of a pipeline that is an output, or the key of one that is an object: `output.key`.
        """
        named = {value["name"]: value["value"] for value in self._parts("values", "name")}
        if name in named:
            found: str | float | None = named[name]
            return found
        if name in self.outputs:
            return ResultRow.output(self, name)
        entry: Any = self.document
        for key in name.split("."):
            entry = entry.get(key) if isinstance(entry, Mapping) else None
        return _single(entry)

    def _labels(self) -> Iterator[tuple[str, float]]:
        for key in LISTS:
            yield from ((part["label"], part.get("score", part.get("share", 0.0))) for part in self._parts(key))
        if isinstance(label := self.document.get("label"), str):
            yield label, self._number("score") or 0.0

    def _parts(self, key: str, named: str = "label") -> Iterator[Mapping[str, Any]]:
        """Yield the objects with the key `named` of a list of the document."""
        parts = self.document.get(key)
        yield from (
            (part for part in parts if isinstance(part, dict) and named in part) if isinstance(parts, list) else ()
        )

    def _number(self, key: str) -> float | None:
        found = self.document.get(key)
        return found if isinstance(found, int | float) else None


def _single(value: Any) -> str | float | None:
    """Return a value of a document that is no list or object, else None."""
    return value if isinstance(value, str | float | int) else None


def document_rows(
    plan: ResultPlan, documents: Sequence[Mapping[str, Any]], outputs: Mapping[str, Array]
) -> list[ResultRow]:
    """Return the rows of an answer with results of a task."""
    several = len(documents) > 1
    return [
        DocumentRow(plan, None, {name: array[row] for name, array in outputs.items()} if several else outputs, document)
        for row, document in enumerate(documents)
    ]
