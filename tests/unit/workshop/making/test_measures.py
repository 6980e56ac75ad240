"""Quality of variants."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.common.domain.manifest import Tolerance
from gateway.serving.domain.golden import GoldenSet
from gateway.workshop.making.measures import Quality, basis_of, is_lossy, quality, similarity, tolerances

SCORES = np.eye(4, 3, dtype=np.float32)


def golden(scores: np.ndarray, label: list[int] | None = None) -> GoldenSet:
    return GoldenSet({"x": np.zeros((len(scores), 1))}, {"y": scores}, None if label is None else np.array(label))


@pytest.mark.parametrize(
    ("reference", "basis", "accuracy"),
    [
        (golden(SCORES, [0, 1, 2, 2]), "labels", 0.5),
        (golden(SCORES), "agreement", 0.75),
        (golden(SCORES[:, :1]), "similarity", 1.0),
        (golden(np.ones((4, 5, 6), np.float32)), "similarity", 1.0),
        (golden(np.ones((4,), np.int64)), "similarity", 1.0),
    ],
)
def test_accuracy_is_what_the_data_allow(reference: GoldenSet, basis: str, accuracy: float) -> None:
    answers = {"y": reference.outputs["y"].copy()}
    if reference.outputs["y"].shape == SCORES.shape:
        answers["y"][1] = [9, 0, 0]
    assert basis_of(reference) == basis
    assert quality(reference, answers).accuracy == pytest.approx(accuracy)


def test_scores_decide_also_if_another_output_is_first() -> None:
    outputs = {"label": np.array([0, 1, 2, 0]), "scores": SCORES}
    answers = {"label": np.array([0, 0, 2, 0]), "scores": SCORES.copy()}
    answers["scores"][1] = [9, 0, 0]
    found = GoldenSet({"x": np.zeros((4, 1))}, outputs, np.array([0, 1, 2, 2]))
    assert (basis_of(found), quality(found, answers).accuracy) == ("labels", 0.5)
    assert quality(GoldenSet(found.inputs, outputs), answers).accuracy == 0.75


@pytest.mark.parametrize(
    ("expected", "answer", "found"),
    [
        ([3.0, 4.0], [3.0, 4.0], 1.0),
        ([3.0, 4.0], [3.0, 4.5], 0.9),
        ([3.0, 4.0], [-3.0, -4.0], 0.0),
        ([3.0, 4.0], [np.nan, 4.0], 0.0),
        ([0.0, 0.0], [0.0, 0.0], 1.0),
        ([0.0, 0.0], [0.0, 1.0], 0.0),
        ([3.0, 4.0], [3.0], 0.0),
    ],
)
def test_similarity_is_relative(expected: list[float], answer: list[float], found: float) -> None:
    assert similarity(np.array(expected), np.array(answer)) == pytest.approx(found)


def test_texts_are_equal_or_not() -> None:
    assert similarity(np.array([b"a"], object), np.array([b"a"], object)) == 1.0
    assert similarity(np.array([b"a"], object), np.array([b"b"], object)) == 0.0


def test_tolerances_leave_room_for_other_processors() -> None:
    found = tolerances({"onnx": [Quality(1.0, 1.0, 0.0), Quality(1.0, 0.98, 0.01)], "litert": [Quality(1, 1, 0)]}, 200)
    assert found == {"onnx": Tolerance(0.97, 0.05), "litert": Tolerance(0.99, 0.005)}
    assert tolerances({"onnx": [Quality(0.0, 0.1, 0.0)]}, 2)["onnx"].agreement == 0.0


def test_a_loss_is_compared_with_the_best() -> None:
    assert not is_lossy(0.98, 0.99, 0.01)
    assert is_lossy(0.97, 0.99, 0.01)
    assert is_lossy(0.9999, 1.0, 0.0)
