"""What scores of runs say about a manifest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.workshop.making.new_model import observed_scores

PROBABILITIES = np.full((2, 3, 4), 0.25)
LOGITS = PROBABILITIES * 12 - 4


def manifest(task: str, shape: tuple[int, ...], layout: str = "") -> tuple[ModelManifest, TensorSpec]:
    spec = TensorSpec("y", Datatype.FP32, shape, layout)
    return ModelManifest("m", "1", (), (spec,), (), task), spec


@pytest.mark.parametrize(("scores", "options"), [(PROBABILITIES, {}), (LOGITS, {"activation": "softmax"})])
def test_characters_that_are_no_probabilities_get_a_softmax(scores: Array, options: object) -> None:
    seen = observed_scores(*manifest("text-recognition", (-1, 3, 4)), scores)
    assert seen.options == options
    assert seen.manifest.outputs[0].postprocess == ""


@pytest.mark.parametrize(("scores", "postprocess"), [(PROBABILITIES, ""), (LOGITS, "softmax")])
def test_classes_that_are_no_probabilities_get_a_softmax(scores: Array, postprocess: str) -> None:
    seen = observed_scores(*manifest("image-classification", (-1, 4)), scores[0])
    assert (seen.options, seen.manifest.outputs[0].postprocess) == ({}, postprocess)
    assert seen.notes["output.y.postprocess"].startswith("inferred: ")


@pytest.mark.parametrize(("scores", "threshold"), [(PROBABILITIES, 0.5), (LOGITS, 0.0)])
def test_a_map_with_one_class_gets_a_threshold_that_is_to_be_checked(scores: Array, threshold: float) -> None:
    seen = observed_scores(*manifest("semantic-segmentation", (-1, 1, 3, 4), "NCHW"), scores[:, np.newaxis])
    assert seen.options == {"threshold": threshold}
    assert seen.notes["task.threshold"].startswith("assumed, check it: ")


def test_a_map_with_several_classes_needs_none() -> None:
    assert observed_scores(*manifest("semantic-segmentation", (-1, 2, 3, 4), "NCHW"), LOGITS).options == {}


@pytest.mark.parametrize(
    ("numbers", "options", "mark"),
    [
        ([1, 2, 3], {"first_class": 1}, "inferred"),
        ([1, 2], {"first_class": 1}, "assumed"),
        ([0, 2], {}, ""),
        ([], {}, ""),
    ],
)
def test_classes_are_numbered_from_1_if_no_run_shows_0(numbers: list[int], options: object, mark: str) -> None:
    model, spec = manifest("object-detection", (-1, 3))
    seen = observed_scores(replace(model, labels=("a", "b", "c")), spec, np.array([numbers], np.float32))
    assert seen.options == options
    assert str(seen.notes.get("task.first_class", "")).startswith(mark)
