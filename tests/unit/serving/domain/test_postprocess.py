"""Softmax against its definition; classification as Triton writes it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.domain.postprocess import classify, finish_outputs, softmax
from tests.simulators.engine_rig import manifest

scores = hnp.arrays(
    np.float32, hnp.array_shapes(min_dims=2, max_dims=3, max_side=5), elements=st.floats(-1e4, 1e4, width=32)
)


@given(scores)
def test_softmax_is_a_distribution_that_keeps_the_order(array: Array) -> None:
    got = softmax(array)
    assert got.dtype == array.dtype
    assert np.allclose(got.sum(axis=-1), 1, atol=1e-5)
    exact = np.exp(array.astype(np.float64) - array.max(axis=-1, keepdims=True))
    assert np.allclose(got, exact / exact.sum(axis=-1, keepdims=True), atol=1e-6)
    assert np.array_equal(np.take_along_axis(got, array.argmax(-1)[..., None], -1)[..., 0], got.max(-1))


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_softmax_does_not_overflow_and_keeps_its_dtype(dtype: str) -> None:
    got = softmax(np.array([[60000.0, 0.0]], dtype))
    assert (got.dtype, got.tolist()) == (np.dtype(dtype), [[1.0, 0.0]])


def test_outputs_are_finished_in_the_manifests_order() -> None:
    outputs = (
        TensorSpec("b", Datatype.FP32, (-1, 2), postprocess="softmax"),
        TensorSpec("a", Datatype.FP32, (-1, 2)),
    )
    raw = np.zeros((1, 2), np.float32)
    done = finish_outputs(manifest(outputs=outputs), {"a": raw, "b": raw, "extra": raw})
    assert list(done) == ["b", "a"]
    assert done["a"] is raw
    assert done["b"].tolist() == [[0.5, 0.5]]


LABELS = ("cat", "dog", "é:x")


@pytest.mark.parametrize(
    ("array", "count", "labels", "expected"),
    [
        (np.array([[0.25, 1.5, -2.0]], "f4"), 2, LABELS, [[b"1.500000:1:dog", b"0.250000:0:cat"]]),
        (np.array([[0.25, 1.5, 9.0]], "f4"), 1, LABELS[:2], [[b"9.000000:2"]]),
        (np.array([[0.1]], "f4"), 5, (), [[b"0.100000:0"]]),
        (np.array([[1, 1, 1]], "i4"), 3, (), [[b"1.000000:0", b"1.000000:1", b"1.000000:2"]]),
        (np.array([[1e-7, 1e10, 3]], "f8"), 3, (), [[b"10000000000.000000:1", b"3.000000:2", b"0.000000:0"]]),
        (np.array([[0, 7, 250]], "u1"), 1, LABELS, [["250.000000:2:é:x".encode()]]),
        (np.array([[-5, 3]], "i1"), 2, (), [[b"3.000000:1", b"-5.000000:0"]]),
        (np.array([[np.inf, 1, np.nan]], "f4"), 3, (), [[b"inf:0", b"1.000000:1", b"nan:2"]]),
        (np.array([[[1, 2], [3, 4]]], "f2"), 1, (), [[b"4.000000:3"]]),
        (np.array([[1, 0], [0, 1]], "f4"), 1, LABELS, [[b"1.000000:0:cat"], [b"1.000000:1:dog"]]),
    ],
)
def test_classes_are_written_as_triton_writes_them(
    array: Array, count: int, labels: tuple[str, ...], expected: list[list[bytes]]
) -> None:
    got = classify(array, count, labels, batched=True)
    assert got.dtype == object
    assert got.tolist() == expected


def test_a_model_without_rows_gives_one_list() -> None:
    assert classify(np.array([1.0, 2.0], "f4"), 1, LABELS, batched=False).tolist() == [b"2.000000:1:dog"]


@given(
    hnp.arrays(
        np.float32, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=st.floats(width=32, allow_nan=False)
    ),
    st.integers(1, 9),
)
def test_the_k_best_come_first(array: Array, count: int) -> None:
    got = classify(array, count, (), batched=True)
    assert got.shape == (len(array), min(count, array.shape[1]))
    for row, named in zip(array, got, strict=True):
        indices = [int(text.split(b":")[1]) for text in named]
        assert len(set(indices)) == len(indices)
        assert [row[index] for index in indices] == sorted(row, reverse=True)[: len(indices)]
        assert [text.split(b":")[0].decode() for text in named] == ["%f" % row[index] for index in indices]  # noqa: UP031  C's format
