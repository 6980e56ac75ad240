"""Meaning of single tensors."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.verdict import Signature
from gateway.workshop.making.tensor_guesses import guess_image, guess_postprocess, guess_range, guess_rows, merged_shape


def spec(*shape: int, datatype: Datatype = Datatype.FP32) -> TensorSpec:
    return TensorSpec("x", datatype, shape)


@pytest.mark.parametrize(
    ("shape", "layout", "sides"),
    [
        ((-1, 3, 224, 224), "NCHW", (3, 224, 224)),
        ((1, 192, 320, 3), "NHWC", (3, 192, 320)),
        ((-1, 1, 28, 28), "NCHW", (1, 28, 28)),
        ((-1, 3, -1, -1), "NCHW", (3, -1, -1)),
        ((-1, -1, -1, 1), "NHWC", (1, -1, -1)),
    ],
)
def test_images_are_seen_by_their_channels(shape: tuple[int, ...], layout: str, sides: tuple[int, ...]) -> None:
    found = guess_image(spec(*shape))
    assert found is not None
    assert (found.layout, (found.channels, found.height, found.width)) == (layout, sides)


@pytest.mark.parametrize("shape", [(-1, 3), (-1, 5, 224, 224), (-1, 3, 2, 224), (-1, 3, 224, 224, 1), (-1, -1, -1, -1)])
def test_other_tensors_are_no_images(shape: tuple[int, ...]) -> None:
    assert guess_image(spec(*shape)) is None


def test_integers_of_tokens_are_no_image() -> None:
    assert guess_image(spec(-1, 3, 224, 224, datatype=Datatype.INT64)) is None


@pytest.mark.parametrize(
    ("inputs", "outputs", "counted", "is_open"),
    [
        (((-1, 3),), ((-1, 2),), True, True),
        (((1, 3),), ((1, 2), (1,)), True, False),
        (((1, 3),), ((-1, 2),), False, False),
        (((-1, 3), (2, -1, 128)), ((-1, 2),), False, False),
        (((1,),), ((1,),), False, False),
        (((),), ((1,),), False, False),
    ],
)
def test_rows_are_counted_if_every_tensor_has_them(
    inputs: tuple[tuple[int, ...], ...], outputs: tuple[tuple[int, ...], ...], counted: bool, is_open: bool
) -> None:
    found = guess_rows(Signature(tuple(spec(*each) for each in inputs), tuple(spec(*each) for each in outputs)))
    assert (found.counted, found.open) == (counted, is_open)


@pytest.mark.parametrize(
    ("datatype", "known", "found"),
    [
        (Datatype.UINT8, "", "pixels"),
        (Datatype.UINT8, "unit", "pixels"),
        (Datatype.INT8, "", "signed-pixels"),
        (Datatype.FP32, "unit", "unit"),
        (Datatype.FP32, "", ""),
    ],
)
def test_ranges_are_told_by_datatypes_and_exporters(datatype: Datatype, known: str, found: str) -> None:
    assert guess_range(datatype, known=known)[0] == found


@pytest.mark.parametrize(
    ("scores", "postprocess"),
    [
        ([[0.2, 0.8], [0.5, 0.5]], ""),
        ([[0.9, 0.8], [0.1, 0.0]], ""),
        ([[-1.0, 0.8], [0.1, 0.0]], "softmax"),
        ([[3.0, 0.8], [0.1, 0.0]], "softmax"),
        ([[np.nan, 0.8], [0.1, 0.0]], ""),
        ([[np.nan, 0.8], [3.0, 0.0]], "softmax"),
        ([[np.nan, 0.8], [np.inf, 0.0]], ""),
    ],
)
def test_scores_that_are_no_probabilities_get_a_softmax(scores: list[list[float]], postprocess: str) -> None:
    assert guess_postprocess(np.array(scores, np.float32))[0] == postprocess


@pytest.mark.parametrize(
    ("one", "other", "merged"),
    [((-1, 3), (5, 3), (5, 3)), ((-1, 3), (-1, 3), (-1, 3)), ((2, 3), (3, 3), None), ((2,), (2, 3), None)],
)
def test_shapes_merge_to_what_both_take(
    one: tuple[int, ...], other: tuple[int, ...], merged: tuple[int, ...] | None
) -> None:
    assert merged_shape(one, other) == merged
