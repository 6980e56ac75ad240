"""The joining proof: it finds rows that depend on each other or on earlier runs, and allows for rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.errors import VariantError
from gateway.domain.joining import difference, rounding
from gateway.domain.manifest import ROWS as ROWS_OPEN
from gateway.domain.manifest import TensorSpec
from gateway.domain.tensor import Array, Datatype
from gateway.domain.verdict import Joining
from gateway.runtimes.generate import generated, samples
from gateway.runtimes.joining import prove, row_runs, widened
from tests.simulators import models

MANIFEST = models.identity()
ROWS = [{"x": np.random.default_rng(row).random((1, 3), np.float32)} for row in range(8)]
WEIGHTS = np.random.default_rng(99).random((3, 300), np.float32)


def proof(answer: Callable[[Array], Array], operators: frozenset[str] = frozenset()) -> Joining:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": answer(inputs["x"])}

    return prove(run, ROWS, "fp32", operators)


def scaled(x: Array) -> Array:
    """Quantise by the largest element of the whole run, as dynamic quantisation does."""
    scale = np.abs(x).max() / 127
    return np.rint(x / scale) * scale


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x * 2,
        lambda x: x @ WEIGHTS,
        lambda x: np.exp(x) / np.exp(x).sum(axis=1, keepdims=True),
        lambda x: np.argmax(x, axis=1),
        lambda x: np.where(x > 0.5, np.nan, x),
    ],
)
def test_rows_that_depend_on_nothing_else_may_be_joined(answer: Callable[[Array], Array]) -> None:
    assert proof(answer) == Joining(independent=True, allowed=True, rows=len(ROWS))


def test_another_order_of_summation_is_rounding() -> None:
    def answer(x: Array) -> Array:
        order = slice(None, None, -1) if len(x) > 2 else slice(None)
        return np.add.accumulate((x @ WEIGHTS)[:, order], axis=1, dtype=np.float32)[:, -1:]

    assert proof(answer).allowed


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (lambda x: x.cumsum(axis=0), "joined answers differ by up to"),
        (lambda x: x[::-1].cumsum(axis=0)[::-1], "joined answers differ by up to"),
        (lambda x: x + x.mean(axis=0), "joined answers differ by up to"),
        (lambda x: x / np.linalg.norm(x), "joined answers differ by up to"),
        (lambda x: x[::-1], "joined answers differ by up to"),
        (scaled, "joined answers differ by up to"),
        (lambda x: np.where(np.arange(len(x))[:, None] > 6, 0, x), "joined answers differ by up to"),
        (lambda x: x[:1] + 1, "output 'y' has shape [1, 3] for 8 joined rows"),
        (lambda x: x - x.mean(axis=0), "output 'y' was the same for every row"),
        (np.zeros_like, "output 'y' was the same for every row"),
    ],
)
def test_rows_that_depend_on_each_other_may_not(answer: Callable[[Array], Array], reason: str) -> None:
    found = proof(answer)
    assert (found.allowed, found.independent) == (False, False)
    assert reason in found.reason


@pytest.mark.parametrize(("dtype", "precision"), [(np.float16, "fp32"), (np.float32, "fp16"), (np.float32, "bf16")])
@pytest.mark.parametrize(
    "answer",
    [
        lambda x: x + x.mean(axis=0),
        lambda x: x[::-1],
        lambda x: x / x.max(axis=0) + x,
        lambda x: 20 + 0.3 * (x - x.mean(axis=0) / 2),
    ],
)
def test_narrow_floats_leave_room_for_rounding_and_not_for_other_rows(
    answer: Callable[[Array], Array], dtype: type[np.floating[Any]], precision: str
) -> None:
    rows = [{"x": row["x"].astype(dtype)} for row in ROWS]

    def proof_of(function: Callable[[Array], Array]) -> Joining:
        def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
            return {"y": function(inputs["x"]).astype(dtype)}

        return prove(run, rows, precision, frozenset())

    assert "joined answers differ" in proof_of(answer).reason
    assert proof_of(lambda x: (x * (1 + 2.0**-10 * len(x))).astype(np.float16)).allowed


@pytest.mark.parametrize("lag", [8, 12, 24])
def test_rows_that_depend_on_others_far_off_are_found_by_a_run_of_as_many_as_are_joined(lag: int) -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        return {"y": x - np.concatenate([np.zeros((lag, 3), np.float32), x])[: len(x)]}

    near = prove(run, ROWS, "fp32", frozenset())
    assert (near.allowed, near.rows) == (True, len(ROWS))
    assert "joined answers differ" in widened(near, run, ROWS, 32, "fp32").reason


def test_a_proof_covers_the_rows_of_the_largest_run_that_succeeded() -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if len(inputs["x"]) > 16:
            raise VariantError("no room")
        return {"y": inputs["x"] * 2}

    near = prove(run, ROWS, "fp32", frozenset())
    assert widened(near, run, ROWS, 16, "fp32").rows == 16
    assert widened(near, run, ROWS, 32, "fp32") == near


def cut(x: Array, lengths: Array) -> Array:
    return np.asarray(x[:, : lengths.max()].mean(axis=1))


def reshaped(x: Array, lengths: Array) -> Array:
    return np.asarray(x.reshape(x.shape[1], x.shape[0], 4).mean(axis=0)) + lengths[:, None].astype(np.float32)


@pytest.mark.parametrize("answer", [cut, reshaped])
def test_generated_rows_of_open_sizes_show_what_one_step_hides(answer: Callable[[Array, Array], Array]) -> None:
    inputs = (TensorSpec("x", Datatype.FP32, (ROWS_OPEN, ROWS_OPEN, 4)), TensorSpec("n", Datatype.INT64, (ROWS_OPEN,)))
    manifest = replace(MANIFEST, inputs=inputs, batch=None)
    rows = [generated(manifest, next(samples(manifest)), row) for row in range(8)]

    def run(fed: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": answer(fed["x"], fed["n"])}

    assert "joined answers differ" in prove(run, rows, "fp32", frozenset()).reason


def test_state_and_randomness_are_found_by_running_the_same_rows_again() -> None:
    random, total = np.random.default_rng(0), [0.0]

    def counts(x: Array) -> Array:
        total[0] += float(x.sum())
        return x + total[0]

    for answer in (lambda x: x + random.random(x.shape), counts):
        assert "answers to the same input differ" in proof(answer).reason


@pytest.mark.parametrize("operator", ["If", "Loop", "WHILE", "RandomNormalLike", "ReadValue", "unreadable graph"])
def test_control_flow_randomness_and_state_in_the_graph_forbid_joining_whatever_the_runs_showed(operator: str) -> None:
    found = proof(lambda x: x * 2, frozenset({"Add", operator}))
    assert (found.independent, found.allowed) == (True, False)
    assert operator in found.reason


def test_a_batch_that_the_model_refuses_is_a_reason() -> None:
    def answer(x: Array) -> Array:
        if len(x) > 1:
            raise VariantError("Invalid dimensions")
        return x

    assert proof(answer).reason == "a run of several generated rows failed: Invalid dimensions"


def test_a_proof_runs_as_many_rows_as_it_says() -> None:
    ran: list[int] = []

    def answer(x: Array) -> Array:
        ran.append(len(x))
        return x

    assert proof(answer).allowed
    assert sum(ran) == row_runs(len(ROWS))


values = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(values, min_size=1, max_size=6), st.data())
def test_a_difference_is_zero_only_for_equal_arrays(left: list[float], data: st.DataObject) -> None:
    right = data.draw(st.one_of(st.just(left), st.lists(values, min_size=len(left), max_size=len(left))))
    a, b = np.array(left, np.float32), np.array(right, np.float32)
    assert (difference(a, b) == 0.0) == np.array_equal(a, b, equal_nan=True)
    assert difference(a, b) == difference(b, a)
    assert rounding(a, "fp32") >= 0.0


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (np.array([b"a"], object), np.array([b"b"], object)),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2, np.float32), np.zeros(2)),
        (np.array([True]), np.array([False])),
    ],
)
def test_what_has_no_distance_is_infinitely_far_apart(left: Array, right: Array) -> None:
    assert difference(left, right) == float("inf")
