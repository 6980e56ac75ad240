"""Golden sets: read from hostile files, judged against what a variant answered."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import TensorSpec, Tolerance
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.domain import golden
from gateway.serving.domain.golden import GoldenSet, compare_golden, first_row, portions, read_golden
from tests.simulators.engine_rig import manifest
from tests.simulators.examples import examples

MODEL = manifest()
STRICT = Tolerance(agreement=0.9, mean_abs=0.1)
X = np.ones((4, 1), np.float32)


def packed(**arrays: Array) -> bytes:
    file = io.BytesIO()
    np.savez(file, **{name.replace("_", "."): array for name, array in arrays.items()})
    return file.getvalue()


GOOD = packed(input_x=X, output_y=X, label=np.zeros(4, np.int64))


def problem(content: bytes) -> str:
    with pytest.raises(ConfigurationError) as error:
        read_golden(content, MODEL, "g.npz")
    assert error.value.file == "g.npz"
    return error.value.problem


def one_hot(classes: list[int], scale: float = 1.0) -> Array:
    return np.eye(4, dtype=np.float32)[classes] * scale


def verdict(expected: Array, answer: Array, label: Array | None = None) -> golden.GoldenResult:
    return compare_golden(GoldenSet({}, {"y": expected}, label), {"y": answer}, STRICT)


def test_a_golden_set_is_read_by_the_manifests_names() -> None:
    found = read_golden(GOOD, MODEL, "g.npz")
    assert np.array_equal(found.inputs["x"], X)
    assert np.array_equal(found.outputs["y"], X)
    assert found.label is not None
    assert read_golden(packed(input_x=X, output_y=X), MODEL, "g.npz").label is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a golden set"),
        (b"PK\x03\x04 no zip", "not a golden set"),
        (packed(input_x=X), "lacks the array 'output.y'"),
        (packed(input_x=X, output_y=np.array([{}], object)), "not a golden set"),
        (packed(input_x=X, output_y=X[:0]), "is empty"),
    ],
)
def test_what_is_no_golden_set_is_refused(content: bytes, words: str) -> None:
    assert words in problem(content)


def test_a_member_that_is_no_array_is_refused() -> None:
    file = io.BytesIO(GOOD)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("label2", b"just text")
    assert "'label2' is no array" in problem(file.getvalue())


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_first_row_is_read_however_the_array_is_stored(order: Literal["C", "F"]) -> None:
    wide = manifest(inputs=(TensorSpec("x", Datatype.FP32, (-1, 3)),))
    x = np.arange(12, dtype=np.float64).reshape(4, 3).copy(order)
    (row,) = first_row(io.BytesIO(packed(input_x=x)), wide).values()
    assert (row.tolist(), row.dtype) == ([[0.0, 1.0, 2.0]], np.float32)


def test_what_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "GOLDEN_LIMIT_BYTES", 400)
    assert "at most 400 are allowed" in problem(GOOD)


@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(GOOD)
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=6)):
        content[place] = data.draw(st.integers(0, 255))
    try:
        assert set(read_golden(bytes(content), MODEL, "g.npz").outputs) == {"y"}
    except ConfigurationError as error:
        assert error.file == "g.npz"  # noqa: PT017  both ways are right


def test_equal_answers_pass() -> None:
    got = verdict(one_hot([0, 1, 2]), one_hot([0, 1, 2]), np.array([0, 1, 3]))
    assert (got.passed, got.agreement, got.mean_abs) == (True, 1.0, 0.0)
    assert got.accuracy == pytest.approx(2 / 3)


@pytest.mark.parametrize(("wrong", "passed"), [(0, True), (1, True), (2, False)])
def test_agreement_counts_the_best_class(wrong: int, passed: bool) -> None:
    answer = one_hot([1] * wrong + [0] * (10 - wrong), 0.1)
    got = compare_golden(GoldenSet({}, {"y": one_hot([0] * 10, 0.1)}), {"y": answer}, STRICT)
    assert (got.passed, got.agreement) == (passed, 1 - wrong / 10)


@pytest.mark.parametrize(("off", "passed"), [(0.09, True), (0.11, False), (-0.11, False)])
def test_the_mean_difference_is_bounded(off: float, passed: bool) -> None:
    got = verdict(one_hot([0, 1]), one_hot([0, 1]) + np.float32(off))
    assert got.passed is passed
    assert got.mean_abs == pytest.approx(abs(off), rel=1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_never_passes(bad: float) -> None:
    answer = one_hot([0, 1])
    answer[0, 1] = bad
    assert not verdict(one_hot([0, 1]), answer).passed


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("piece", [2, 2**20])
def test_places_that_are_not_finite_in_both_are_left_out(
    bad: float, dtype: type, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(golden, "PIECE", piece)
    expected = np.array([[bad], [1], [2], [bad]], dtype)
    near = np.array([[bad], [1], [2.25], [bad]], dtype)
    with np.errstate(all="raise"):
        assert golden.mean_difference(expected, expected) == 0
        assert golden.mean_difference(expected, near) == 0.125  # of the two that are finite
        assert golden.mean_difference(expected[:1], expected[:1]) == np.inf  # nothing is compared
        for other in (0, np.nan, np.inf, -np.inf):
            answer = near.copy()
            answer[0] = other
            is_same = bad == other or (np.isnan(bad) and np.isnan(other))
            assert golden.mean_difference(expected, answer) == (0.125 if is_same else np.inf)
            assert golden.mean_difference(answer, expected) == (0.125 if is_same else np.inf)
    assert verdict(expected, expected).passed


def test_a_place_that_is_no_number_hides_no_wrong_class() -> None:
    expected = one_hot([0, 1])
    expected[:, 3] = np.nan
    assert verdict(expected, expected).passed
    swapped = expected[:, [1, 0, 2, 3]]
    assert verdict(expected, swapped, Tolerance(agreement=0.5, mean_abs=1.0)).agreement == 0


def test_another_shape_never_passes() -> None:
    got = verdict(one_hot([0, 1]), one_hot([0]))
    assert not got.passed
    assert "[1, 4], expected [2, 4]" in got.reason


@pytest.mark.parametrize(
    ("expected", "answer", "passed"),
    [
        (np.array([[1], [2]], np.int64), np.array([[1], [2]], np.int64), True),
        (np.array([[1], [2]], np.int64), np.array([[1], [3]], np.int64), False),
        (np.array([[b"a"]], object), np.array([[b"a"]], object), True),
        (np.array([[b"a"]], object), np.array([[b"b"]], object), False),
        (np.array([[1.0]], np.float32), np.array([[1.005]], np.float32), True),
        (np.array([[1.0]], np.float32), np.array([[1.05]], np.float32), False),
        (np.array([[True]]), np.array([[True]]), True),
        (np.array([[True]]), np.array([[False]]), False),
    ],
)
def test_outputs_that_are_no_scores_must_be_equal_or_near(expected: Array, answer: Array, passed: bool) -> None:
    assert verdict(expected, answer).passed is passed


def test_the_worst_output_decides() -> None:
    expected = {"a": one_hot([0]), "b": one_hot([0])}
    got = compare_golden(GoldenSet({}, expected), {"a": one_hot([0]), "b": one_hot([1])}, STRICT)
    assert (got.passed, got.agreement) == (False, 0.0)


def test_scalars_of_rows_stay_arrays() -> None:
    """An input of shape [] has one number in each run; engines take arrays only."""
    spec = TensorSpec("rate", Datatype.INT64, ())
    whole = replace(manifest(), inputs=(spec,), batch=False)
    rows = GoldenSet({"rate": np.array([8000, 16000])}, {})
    assert [(type(part["rate"]), part["rate"].shape) for part in portions(whole, rows, 8)] == [(np.ndarray, ())] * 2


@pytest.mark.parametrize("piece", [1, 7, 24])
@pytest.mark.parametrize("dtype", ["<f4", "<f8", "i1", "u1", "<i8"])
def test_pieces_give_what_the_whole_gives(piece: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "PIECE", piece)
    own = np.random.default_rng(piece)
    expected = (own.normal(size=(4, 6)) * 40).astype(dtype)
    answer = (expected + own.integers(0, 2, (4, 6)).astype(dtype)).astype(dtype)
    for one, two in ((expected, answer), (np.asfortranarray(expected), answer), (expected[:, :1], answer[:, :1])):
        whole = np.abs(two.astype(np.float64) - one.astype(np.float64)).mean()
        assert golden.mean_difference(one, two) == pytest.approx(whole, rel=1e-12)
    one, two = expected.reshape(-1, 1).astype(np.float32), answer.reshape(-1, 1).astype(np.float32)
    assert golden.agreeing(one, two).tolist() == np.isclose(two, one, rtol=1e-2, atol=1e-2).tolist()


def test_a_comparison_of_many_values_needs_little_memory() -> None:
    values = np.zeros((1, 2**24), np.uint8)
    tracemalloc.start()
    try:
        assert golden.mean_difference(values, values + np.uint8(1)) == 1
        assert tracemalloc.get_traced_memory()[1] < 4 * values.nbytes
    finally:
        tracemalloc.stop()
