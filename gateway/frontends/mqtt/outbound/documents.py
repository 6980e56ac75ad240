"""Values of the results of a model's task, by name: what templates and rules read. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.domain.tensor import Array
from gateway.frontends.mqtt.outbound.contents import ResultPlan
from gateway.frontends.mqtt.outbound.rows import ResultRow

LISTS = ("detections", "classes")
"""Keys of documents whose lists have a label and a score in each place, best first."""


@dataclass(frozen=True, slots=True)
class DocumentRow(ResultRow):
    """Result of a task for one row. A label that a list of labels lacks has the score 0: it was not found."""

    document: Mapping[str, Any]

    @property
    def label(self) -> str | None:
        """Return the label of the document, or of its best part."""
        return next(iter(self.best_labels(1)), None)

    @property
    def score(self) -> float | None:
        """Return the score of the document, or of its best part."""
        found: float | None = self.document.get("score", next((score for _, score in self._labels()), None))
        return found

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

    @property
    def value(self) -> str | float | None:
        """Return the only value, the text, the score of an anomaly, the number of detections, or the label."""
        values, detections = self.document.get("values", ()), self.document.get("detections")
        if len(values) == 1:
            return self.output(values[0]["name"])
        for key in ("text", "score") if self.document.keys() & {"text", "anomalous"} else ():
            if key in self.document:
                found: str | float | None = self.document[key]
                return found
        return self.label if detections is None else float(len(detections))

    def output(self, name: str) -> str | float | None:
        """Return the value that the document calls `name`, or the only element of the output `name`."""
        named = {value["name"]: value["value"] for value in self.document.get("values", ())}
        return named[name] if name in named else ResultRow.output(self, name)

    def _labels(self) -> Iterator[tuple[str, float]]:
        for key in LISTS:
            parts = self.document.get(key, ())
            yield from ((part["label"], part.get("score", part.get("share", 0.0))) for part in parts)
        if self.document.get("label") is not None:
            yield self.document["label"], self.document.get("score") or 0.0


def document_rows(
    plan: ResultPlan, documents: Sequence[Mapping[str, Any]], outputs: Mapping[str, Array]
) -> list[ResultRow]:
    """Return the rows of an answer with results of a task."""
    several = len(documents) > 1
    return [
        DocumentRow(plan, None, {name: array[row] for name, array in outputs.items()} if several else outputs, document)
        for row, document in enumerate(documents)
    ]
