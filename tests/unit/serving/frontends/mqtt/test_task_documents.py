"""Values of a task's results that templates and rules read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.common.domain.tensor import Datatype, Tensor
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan, read_documents, write_results
from gateway.serving.frontends.mqtt.outbound.rows import ResultRow, document_rows

PLAN = ResultPlan(document="result")
PERSON = {"label": "person", "class": 0, "score": 0.9, "box": [0, 0, 1, 1]}
OTHER = {"label": "person", "class": 0, "score": 0.5, "box": [0, 0, 1, 1]}
CAR = {"label": "car", "class": 1, "score": 0.7, "box": [0, 0, 1, 1]}


def row(document: dict[str, Any]) -> ResultRow:
    (found,) = document_rows(PLAN, [document], {"y": np.array([[4.0]], np.float32)})
    return found


@pytest.mark.parametrize(
    ("document", "label", "score", "value"),
    [
        ({"detections": [PERSON, CAR, OTHER]}, "person", 0.9, 3.0),
        ({"detections": []}, None, None, 0.0),
        ({"classes": [CAR], "label": "car", "score": 0.7}, "car", 0.7, "car"),
        ({"classes": [], "label": None, "score": None}, None, None, None),
        ({"size": [1, 1], "classes": [{"label": "road", "class": 2, "share": 0.25}]}, "road", 0.25, "road"),
        ({"text": "B-AB 12", "score": 0.8}, None, 0.8, "B-AB 12"),
        ({"score": 0.2, "threshold": 0.1, "anomalous": True}, None, 0.2, 0.2),
        ({"values": [{"name": "torque", "value": 3.5}]}, None, None, 3.5),
        ({"values": [{"name": "a", "value": 1.0}, {"name": "b", "value": 2.0}]}, None, None, None),
    ],
)
def test_label_score_and_value(document: dict[str, Any], label: Any, score: Any, value: Any) -> None:
    found = row(document)
    assert (found.label, found.score, found.value) == (label, score, value)


def test_a_label_that_was_not_found_has_the_score_0() -> None:
    found = row({"detections": [PERSON, CAR, OTHER]})
    assert [found.score_of(label) for label in ("person", "car", "dog")] == [0.9, 0.7, 0.0]
    assert found.best_labels(5) == ["person", "car"]
    assert row({"text": "x", "score": 0.5}).score_of("person") is None


def test_values_are_known_by_their_names_and_outputs_by_theirs() -> None:
    found = row({"values": [{"name": "a", "value": 1.0}, {"name": "b", "value": None}]})
    assert [found.output(name) for name in ("a", "b", "y", "z")] == [1.0, None, 4.0, None]


def test_a_result_has_the_document_of_each_row() -> None:
    texts = np.empty(2, object)
    texts[:] = [b'{"detections": []}', b'{"text": "hi"}']
    outputs = {"result": Tensor(Datatype.BYTES, texts)}
    assert read_documents("y", outputs) is None
    two = write_results(ResultPlan(document="result", batched=True), outputs, 2, 1_000)
    assert two == {"results": [{"detections": []}, {"text": "hi"}]}
    one = {"result": Tensor(Datatype.BYTES, texts[1:])}
    assert write_results(PLAN, one, 1, 1_000) == {"text": "hi"}
