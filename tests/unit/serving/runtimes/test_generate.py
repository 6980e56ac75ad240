"""Generated inputs: the same number gives the same input, shapes fit the manifest, and real models' needs are met."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ModelManifest, TensorSpec, fits
from gateway.common.domain.tensor import Array, Datatype, Tensors
from gateway.common.domain.verdict import Verdict
from gateway.serving.runtimes.exercise import Exercised, exercise
from gateway.serving.runtimes.generate import generated, samples, witness
from gateway.serving.runtimes.settings import TrialSettings
from tests.simulators.constants import settings_with

OUTPUT = TensorSpec("y", Datatype.FP32, (-1,))


def model(*inputs: TensorSpec, batch: bool | None = None) -> ModelManifest:
    return ModelManifest("m", "1", inputs, (OUTPUT,), (), batch=batch)


specs = st.builds(
    TensorSpec,
    st.just("x"),
    st.sampled_from(list(Datatype)),
    st.lists(st.sampled_from((-1, 1, 3)), max_size=4).map(tuple),
)


@given(specs, st.integers(0, 63), st.integers(0, 9))
def test_the_same_number_always_gives_an_input_that_fits(spec: TensorSpec, number: int, row: int) -> None:
    of = model(spec)
    sample = next(islice(samples(of), number, None), None)
    if sample is not None:
        first, again = generated(of, sample, row)["x"], generated(of, sample, row)["x"]
        assert fits(first.shape, spec.shape)
        assert first.dtype == spec.datatype.dtype
        np.testing.assert_array_equal(first, again)


def test_other_rows_have_other_values() -> None:
    for datatype in Datatype:
        of = model(TensorSpec("x", datatype, (-1, 40)))
        sample = next(samples(of))
        assert not np.array_equal(generated(of, sample, 0)["x"], generated(of, sample, 1)["x"])


def test_dimensions_of_one_name_have_one_size() -> None:
    ids = TensorSpec("ids", Datatype.INT64, (-1, -1), axes=("batch", "sequence"))
    state = TensorSpec("state", Datatype.FP32, (2, -1, 128), axes=("", "batch", ""))
    for sample in samples(model(ids, state)):
        sizes = generated(model(ids, state), sample)
        assert sizes["ids"].shape[0] == sizes["state"].shape[1]


def answering(accepts: object) -> object:
    def run(inputs: Tensors) -> dict[str, Array]:
        if not accepts(inputs):  # type: ignore[operator]
            raise VariantError("Got invalid dimensions")
        return {"y": np.ones(3, np.float32)}

    return run


def tried(of: ModelManifest, accepts: object, **settings: object) -> Exercised:
    return exercise(of, answering(accepts), settings_with(TrialSettings(), **settings), lambda _words, _part: None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("inputs", "accepts"),
    [
        ([("x", "FP32", (-1, 3, -1, -1))], lambda i: i["x"].shape[2:] in {(64, 64), (224, 224)}),
        ([("x", "FP32", (1, 1, 64, -1))], lambda i: i["x"].shape[3] >= 32),
        ([("x", "UINT8", (-1, -1, -1, 3))], lambda i: i["x"].shape == (1, 640, 640, 3) and i["x"].max() > 200),
        (
            [("pcm", "FP32", (-1, -1)), ("sr", "INT64", ())],
            lambda i: i["pcm"].shape[0] == 1 and int(i["sr"]) in {8000, 16000},
        ),
        ([("ids", "INT64", (-1, -1)), ("n", "INT64", (1,))], lambda i: int(i["n"][0]) == i["ids"].shape[1]),
        (
            [("pcm", "FP32", (-1, -1)), ("state", "FP32", (2, -1, 128)), ("sr", "INT64", ())],
            lambda i: i["pcm"].shape[1] >= 64 and i["state"].shape[1] == i["pcm"].shape[0],
        ),
        ([("number", "BYTES", (-1,))], lambda i: all(text.isdigit() for text in i["number"])),
        ([("x", "FP32", (-1, 512)), ("s", "FP32", (-1, 8))], lambda i: i["x"].shape[0] == i["s"].shape[0] == 8),
    ],
)
def test_what_models_of_packages_ask_for_is_among_the_samples(inputs: list[tuple], accepts: object) -> None:
    of = model(*(TensorSpec(name, Datatype[label], shape) for name, label, shape in inputs))
    found = tried(model(*of.inputs, batch=False), accepts)
    assert found.sample is not None
    assert found.index is not None
    again = witness(
        of if of.batch is False else model(*of.inputs, batch=False), Path(), Verdict(True, "", sample=found.index)
    )
    assert accepts(again)  # type: ignore[operator]


def test_nothing_accepted_is_told_with_the_last_refusal_and_bounded() -> None:
    of = model(TensorSpec("x", Datatype.INT64, (-1, -1)))
    found = tried(of, lambda _: False, exercise_samples=7)
    assert (found.index, found.tried) == (None, 7)
    assert "Got invalid dimensions" in found.refusal
    assert tried(of, lambda _: False, deadline_s=0.0).tried == 1


def test_nan_and_unequal_answers_are_remarks() -> None:
    of, count = model(TensorSpec("x", Datatype.FP32, (2,))), [0]

    def run(_: Tensors) -> dict[str, Array]:
        count[0] += 1
        return {"y": np.full(2, np.nan if count[0] < 3 else count[0], np.float32)}

    settings = TrialSettings()
    assert exercise(of, run, settings, lambda _words, _part: None).remarks == (
        "output 'y' holds NaN or infinity for generated inputs",
    )
    assert exercise(of, run, settings, lambda _words, _part: None).remarks == (
        "output 'y' differs between two runs on the same inputs",
    )


def test_a_shape_that_is_not_declared_is_a_remark_on_a_file_and_a_defect_of_a_manifest() -> None:
    def run(_: Tensors) -> dict[str, Array]:
        return {"y": np.ones((3, 1), np.float32)}

    x, settings = TensorSpec("x", Datatype.FP32, (2,)), TrialSettings()
    assert "has shape [3, 1]" in exercise(model(x), run, settings, lambda _words, _part: None).remarks[0]
    with pytest.raises(VariantError, match="correct the shape in the manifest"):
        exercise(model(x, batch=True), run, settings, lambda _words, _part: None)
