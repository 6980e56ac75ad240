"""Samples: their shapes, their division, and what follows from few of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.common.domain.manifest import Binding, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Datatype
from gateway.workshop.making.samples import (
    SampleSet,
    divided,
    few_samples_remarks,
    joined_samples,
    label_indices,
    own_runs,
    read_limit,
    read_remarks,
    shape_problem,
)
from gateway.workshop.making.settings import CalibrationSettings

IMAGE = TensorSpec("x", Datatype.FP32, (-1, 3, 4, 5), "NCHW")
MANIFEST = ModelManifest("m", "1", (IMAGE,), (TensorSpec("y", Datatype.FP32, (-1, 2)),), (), batch=True)
SETTINGS = CalibrationSettings()


def samples(count: int, *, labels: bool = True) -> SampleSet:
    rows = np.arange(count * 60, dtype=np.float32).reshape(count, 3, 4, 5)
    return SampleSet({"x": rows}, np.arange(count) % 3 if labels else None, "digest", count)


def test_calibration_and_held_out_samples_are_apart_and_drawn_by_the_seed() -> None:
    calibration, heldout = divided(samples(100), SETTINGS, 1)
    firsts = [set(part.inputs["x"][:, 0, 0, 0].tolist()) for part in (calibration, heldout)]
    assert (len(calibration), len(heldout), firsts[0] & firsts[1]) == (50, 50, set())
    assert heldout.labels is not None
    assert all(heldout.inputs["x"][:, 0, 0, 0] / 60 % 3 == heldout.labels)
    again, other = divided(samples(100), SETTINGS, 1), divided(samples(100), SETTINGS, 2)
    assert np.array_equal(again[1].inputs["x"], heldout.inputs["x"])
    assert not np.array_equal(other[1].inputs["x"], heldout.inputs["x"])


@pytest.mark.parametrize(("count", "parts"), [(1, (1, 1)), (2, (1, 1)), (5, (3, 2)), (3000, (256, 1000))])
def test_every_number_of_samples_is_divided(count: int, parts: tuple[int, int]) -> None:
    calibration, heldout = divided(samples(count, labels=False), SETTINGS, 0)
    assert (len(calibration), len(heldout)) == parts


def test_few_samples_have_consequences() -> None:
    told = few_samples_remarks(3, 2, "labels", SETTINGS)
    assert "ranges are taken from 3 samples" in told[0]
    assert "one of them is 50.0 %" in told[1]
    assert few_samples_remarks(50, 100, "labels", SETTINGS) == []
    assert few_samples_remarks(50, 2, "similarity", SETTINGS) == []
    assert few_samples_remarks(50, 2, "map-50", SETTINGS) == [
        "accuracy is measured on 2 samples: a few of them decide it"
    ]


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ((7, 3, 4, 5), ""),
        ((3, 4, 5), "[samples, 3, 4, 5]"),
        ((7, 4, 5, 3), "[7, 4, 5, 3]"),
        ((0, 3, 4, 5), "no samples"),
    ],
)
def test_arrays_of_another_shape_are_refused(shape: tuple[int, ...], problem: str) -> None:
    found = shape_problem(MANIFEST, IMAGE, np.zeros(shape, np.float32))
    assert (found == "") == (problem == "")
    assert problem in found


def test_samples_without_a_row_dimension_keep_the_whole_shape() -> None:
    state = replace(IMAGE, shape=(2, 1, 8), layout="")
    manifest = replace(MANIFEST, inputs=(state,), batch=False)
    assert shape_problem(manifest, state, np.zeros((5, 2, 1, 8), np.float32)) == ""
    variant = Variant("v", "onnx", "fp32", ())
    ((name, runs),) = own_runs(manifest, variant, SampleSet({"x": np.zeros((5, 2, 1, 8), np.float32)}, None, "", 5))
    assert (name, runs.shape) == ("x", (5, 2, 1, 8))


def test_runs_have_the_names_and_layouts_of_the_file() -> None:
    variant = Variant("v", "litert", "fp32", (), bind={"x": Binding("in:0", "NHWC")})
    ((name, runs),) = own_runs(MANIFEST, variant, samples(2))
    assert (name, runs.shape, runs.flags.c_contiguous) == ("in:0", (2, 1, 4, 5, 3), True)
    assert np.array_equal(runs[1, 0].transpose(2, 0, 1), samples(2).inputs["x"][1])


def test_runs_have_the_shape_that_the_file_is_bound_with() -> None:
    for batched, shape in ((True, (-1, 60)), (False, (60,))):
        manifest = MANIFEST if batched else replace(MANIFEST, batch=False)
        variant = Variant("v", "onnx", "fp32", (), bind={"x": Binding("x", "", shape)})
        ((_, runs),) = own_runs(manifest, variant, samples(2))
        assert runs.shape == ((2, 1, 60) if batched else (2, 60))
        assert np.array_equal(runs.ravel(), samples(2).inputs["x"].ravel())


def test_large_samples_are_fewer() -> None:
    assert read_limit(MANIFEST, SETTINGS) == SETTINGS.calibration_rows + SETTINGS.heldout_rows
    assert read_limit(MANIFEST, replace(SETTINGS, samples_bytes=4 * 60 * 10)) == 10
    assert read_limit(MANIFEST, replace(SETTINGS, samples_bytes=1)) == 2
    (remark,) = read_remarks(replace(samples(10), found=5000), SETTINGS)
    assert remark == "10 of 5000 samples are read: more would take more than 536870912 bytes of memory"
    assert read_remarks(samples(10), SETTINGS) == read_remarks(replace(samples(2000), found=5000), SETTINGS) == []


@pytest.mark.parametrize(
    ("names", "labels", "indices"),
    [
        (["dog", "cat"], ("cat", "dog"), [1, 0]),
        (["2", "10"], (), [2, 10]),
        (["b", "a", "b"], (), [1, 0, 1]),
        (["1"], ("0", "1"), [1]),
    ],
)
def test_names_become_numbers(names: list[str], labels: tuple[str, ...], indices: list[int]) -> None:
    assert label_indices(names, labels).tolist() == indices


def test_a_name_that_is_no_label_is_refused() -> None:
    with pytest.raises(ValueError, match="'bird' is none of the model's labels"):
        label_indices(["bird"], ("cat", "dog"))


def test_files_of_different_sizes_do_not_join() -> None:
    parts = [{"x": np.zeros((1, 2))}, {"x": np.zeros((3, 2))}]
    assert joined_samples(parts)["x"].shape == (4, 2)
    with pytest.raises(ValueError, match="dimension"):
        joined_samples([*parts, {"x": np.zeros((1, 3))}])
