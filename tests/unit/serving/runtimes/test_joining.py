"""Runs apart and together: they find rows that depend on each other or on earlier runs, and allow for rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import VariantError, is_temporary
from gateway.common.domain.manifest import ROWS as ROWS_OPEN
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.common.domain.verdict import Joining
from gateway.serving.domain.joining import difference as apart
from gateway.serving.domain.joining import rounding
from gateway.serving.runtimes.generate import extreme_rows, generated, samples
from gateway.serving.runtimes.joining import decided, difference, row_runs, widened
from tests.simulators import models

MANIFEST = models.identity()
ROWS = [{"x": np.random.default_rng(row).random((1, 3), np.float32)} for row in range(8)]
WEIGHTS = np.random.default_rng(99).random((3, 300), np.float32)
EXTREMES = extreme_rows(MANIFEST, ROWS[0])


def found(answer: Callable[[Array], Array]) -> str:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        with np.errstate(all="ignore"):
            return {"y": answer(inputs["x"])}

    return difference(run, ROWS, EXTREMES, "fp32")


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
        np.zeros_like,
    ],
)
def test_rows_that_depend_on_nothing_else_do_not_differ(answer: Callable[[Array], Array]) -> None:
    assert not found(answer)


def test_another_order_of_summation_is_rounding() -> None:
    def answer(x: Array) -> Array:
        order = slice(None, None, -1) if len(x) > 2 else slice(None)
        return np.add.accumulate((x @ WEIGHTS)[:, order], axis=1, dtype=np.float32)[:, -1:]

    assert not found(answer)


def decibels(x: Array) -> Array:
    power = 10 * np.log10(np.maximum(np.abs(x), 1e-10))
    return np.maximum(power, power.max() - 80)


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
    ],
)
def test_rows_that_depend_on_each_other_differ(answer: Callable[[Array], Array], reason: str) -> None:
    assert reason in found(answer)


@pytest.mark.parametrize(
    "answer",
    [
        decibels,
        lambda x: x / (x.max() if x.max() > 1000 else 1),
        lambda x: x + 0 * x.sum(),
        lambda x: np.where(np.abs(x).max() > 6e4 / 3, 0, x),
    ],
)
def test_rows_beside_extreme_ones_show_what_similar_rows_hide(answer: Callable[[Array], Array]) -> None:
    assert "joined answers differ by up to" in found(answer)

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": answer(inputs["x"])}

    assert not difference(run, ROWS, (), "fp32")


def test_an_extreme_row_that_the_model_refuses_shows_nothing() -> None:
    def answer(x: Array) -> Array:
        if not np.isfinite(x).all() or x.max() > 10:
            raise VariantError("out of range")
        return x

    assert not found(answer)


def test_what_the_manifest_refuses_is_no_extreme_row() -> None:
    finite = replace(MANIFEST, inputs=tuple(replace(spec, finite=True) for spec in MANIFEST.inputs))
    assert len(extreme_rows(MANIFEST, ROWS[0])[1]) == 2
    assert extreme_rows(finite, ROWS[0])[1] == []
    ids = replace(MANIFEST, inputs=(replace(MANIFEST.inputs[0], datatype=Datatype.INT64),))
    assert extreme_rows(ids, {"x": np.ones((1, 3), np.int64)}) == ([], [])


@pytest.mark.parametrize(
    ("basis", "obstacle", "shown", "allowed"),
    [
        ("proved", "", "", True),
        ("proved", "", "differs", False),
        ("declared", "", "differs", True),
        ("", "ReduceMax 'm': it works along the axis of rows", "", False),
        ("", "ReduceMax 'm': it works along the axis of rows", "differs", False),
    ],
)
def test_a_proof_or_a_declaration_permits_joining_and_runs_contradict_proofs_only(
    basis: str, obstacle: str, shown: str, allowed: bool
) -> None:
    joining = decided(basis, obstacle, shown, 8)
    assert joining.allowed is allowed
    assert joining.rows == (8 if allowed else 1)
    assert joining.difference == shown
    assert not obstacle or joining.reason == obstacle


def test_rows_that_depend_on_others_far_off_are_found_by_a_run_of_as_many_as_are_joined() -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        return {"y": x - np.concatenate([np.zeros((12, 3), np.float32), x])[: len(x)]}

    assert not difference(run, ROWS, (), "fp32")
    wide = widened(Joining("proved", rows=8), run, ROWS, 32, "fp32")
    assert not wide.allowed
    assert "runs contradict it: joined answers differ" in wide.reason
    declared = widened(Joining("declared", rows=8), run, ROWS, 32, "fp32")
    assert (declared.allowed, declared.rows) == (True, 32)
    assert "joined answers differ" in declared.difference


def test_no_run_joins_more_rows_than_the_largest_that_succeeded() -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        if len(inputs["x"]) > 16:
            raise VariantError("no room")
        return {"y": inputs["x"] * 2}

    near = Joining("proved", rows=8)
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

    assert "joined answers differ" in difference(run, rows, (), "fp32")


def test_state_and_randomness_are_found_by_running_the_same_rows_again() -> None:
    random, total = np.random.default_rng(0), [0.0]

    def counts(x: Array) -> Array:
        total[0] += float(x.sum())
        return x + total[0]

    for answer in (lambda x: x + random.random(x.shape), counts):
        assert "answers to the same input differ" in found(answer)


def test_a_batch_that_the_model_refuses_is_a_difference() -> None:
    def answer(x: Array) -> Array:
        if len(x) > 1:
            raise VariantError("Invalid dimensions")
        return x

    assert found(answer) == "a run of several generated rows failed: Invalid dimensions"


def test_runs_take_as_many_rows_as_is_said() -> None:
    ran: list[int] = []

    def answer(x: Array) -> Array:
        ran.append(len(x))
        return x

    assert not found(answer)
    assert sum(ran) == row_runs(len(ROWS), EXTREMES)


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_few_rows_are_run_next_to_every_extreme_one(count: int) -> None:
    ran: list[int] = []

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        ran.append(len(inputs["x"]))
        return {"y": decibels(inputs["x"])}

    assert "joined answers differ" in difference(run, ROWS[:count], EXTREMES, "fp32")
    ran.clear()
    assert not difference(lambda inputs: {"y": run(inputs)["y"] * 0}, ROWS[:count], EXTREMES[:1], "fp32")
    assert sum(ran) == row_runs(count, EXTREMES[:1])


def test_a_lack_of_memory_contradicts_nothing() -> None:
    def answer(x: Array) -> Array:
        if len(x) > 1:
            raise VariantError("Failed to allocate memory for requested buffer of size 1000")
        return x

    shown = found(answer)
    joining = decided("proved", "", shown, 8)
    assert (joining.allowed, joining.difference, joining.reason) == (False, "", shown)
    assert is_temporary(joining.reason)


values = st.floats(width=32, allow_nan=True, allow_infinity=True)


@given(st.lists(values, min_size=1, max_size=6), st.data())
def test_a_difference_is_zero_only_for_equal_arrays(left: list[float], data: st.DataObject) -> None:
    right = data.draw(st.one_of(st.just(left), st.lists(values, min_size=len(left), max_size=len(left))))
    a, b = np.array(left, np.float32), np.array(right, np.float32)
    assert (apart(a, b) == 0.0) == np.array_equal(a, b, equal_nan=True)
    assert apart(a, b) == apart(b, a)
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
    assert apart(left, right) == float("inf")
