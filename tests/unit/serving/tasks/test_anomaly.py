"""Anomaly detection: errors of reconstruction as scikit-learn computes them, given scores, thresholds, NaN."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import TensorSpec
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.tasks.anomaly import AnomalyDetection
from tests.simulators.task_models import model, options, output

AUTOENCODER = model(output(shape=(-1, 4)))
ROWS = arrays.arrays(np.float32, 4, elements=st.floats(-1e3, 1e3, width=32))


def reconstruction(text: str = "") -> AnomalyDetection:
    return AnomalyDetection(AUTOENCODER, options(f'reconstruction = "y"\nthreshold = 0.5\n{text}'))


@given(ROWS, ROWS)
def test_the_error_of_reconstruction_is_that_of_scikit_learn(given_row: Array, made: Array) -> None:
    from sklearn.metrics import mean_squared_error

    task = reconstruction()
    assert task.inputs == ("x",)
    got = task.interpret({"x": given_row, "y": made}, None)
    assert got.score == pytest.approx(mean_squared_error(given_row.astype(float), made.astype(float)), abs=1e-9)
    assert got.anomalous == (got.score > 0.5)


def test_document_and_tensors() -> None:
    got = reconstruction().interpret({"x": np.zeros(4), "y": np.full(4, 2.0)}, None)
    assert got.document() == {"score": 4.0, "threshold": 0.5, "anomalous": True}
    assert {name: array.tolist() for name, array in got.tensors().items()} == {"score": [4.0], "anomalous": [True]}
    assert {spec.name: spec.datatype.dtype for spec in AnomalyDetection.results} == {
        name: array.dtype for name, array in got.tensors().items()
    }


@pytest.mark.parametrize(
    ("side", "score", "is_anomalous"), [("above", 0.6, True), ("above", 0.5, False), ("below", 0.4, True)]
)
def test_a_given_score_is_compared(side: str, score: float, *, is_anomalous: bool) -> None:
    task = AnomalyDetection(
        model(output(shape=(-1, 1))), options(f'score = "y"\nthreshold = 0.5\nanomalous = "{side}"')
    )
    assert task.inputs == ()
    assert task.interpret({"y": np.array([score])}, None).anomalous is is_anomalous


@pytest.mark.parametrize(("reduce", "score"), [("max", 0.9), ("mean", 0.5)])
def test_a_map_is_reduced(reduce: str, score: float) -> None:
    text = f'score = "y"\nthreshold = 0.5\nreduce = "{reduce}"'
    task = AnomalyDetection(model(output(shape=(-1, 1, 2, -1))), options(text))
    assert task.interpret({"y": np.array([[[0.9, 0.1], [0.5, 0.5]]])}, None).score == pytest.approx(score)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_not_finite_is_null(bad: float) -> None:
    got = reconstruction().interpret({"x": np.zeros(4), "y": np.array([bad, 0, 0, 0])}, None)
    document = got.document()
    assert document == {"score": None, "threshold": 0.5, "anomalous": None if np.isnan(bad) else True}
    json.dumps(document, allow_nan=False)
    assert got.tensors()["anomalous"].tolist() == [not np.isnan(bad)]


@pytest.mark.parametrize(("made", "words"), [((3, 2), "shape"), ((0, 4), "empty")])
def test_a_reconstruction_of_another_form_is_refused(made: tuple[int, ...], words: str) -> None:
    open_model = model(output(shape=(-1, -1, 4)), inputs=(TensorSpec("x", Datatype.FP32, (-1, -1, 4)),))
    task = AnomalyDetection(open_model, options('reconstruction = "y"\nthreshold = 1'))
    with pytest.raises(RequestError, match=words) as error:
        task.interpret({"x": np.zeros((2, 4)), "y": np.zeros((made[0], 4))}, None)
    assert error.value.fault is Fault.UNSUPPORTED


X, SAME = TensorSpec("x", Datatype.FP32, (-1, 4)), output("x", (-1, 4))
REFUSALS = [
    ("threshold = 1", (output(),), (X,), "score", "exactly one"),
    ('score = "y"\nreconstruction = "y"\nthreshold = 1', (output(),), (X,), "score", "exactly one"),
    ('score = "y"', (output(shape=(-1, 1)),), (X,), "threshold", "missing"),
    ('score = "y"\nthreshold = 1', (output(),), (X,), "reduce", "several values"),
    ('reconstruction = "y"\nthreshold = 1', (output(),), (X,), "reconstruction", "shape"),
    (
        'reconstruction = "y"\nthreshold = 1\nreduce = "max"',
        (output(shape=(-1, 4)),),
        (X,),
        "reduce",
        "always the mean",
    ),
    ('reconstruction = "y"\nthreshold = 1', (output(shape=(-1, 4)),), (X, output("z", (-1, 4))), "input", "missing"),
    ('reconstruction = "y"\nthreshold = 1\ninput = "z"', (output(shape=(-1, 4)),), (X,), "input", "must name"),
    ('reconstruction = "x"\nthreshold = 1', (SAME,), (X,), "input", "rename"),
    ('score = "y"\nthreshold = 1\nzz = 1', (output(shape=(-1, 1)),), (X,), "zz", "unknown key"),
]


@pytest.mark.parametrize(("text", "outputs", "inputs", "key", "words"), REFUSALS)
def test_options_that_do_not_fit_are_refused(
    text: str, outputs: tuple[TensorSpec, ...], inputs: tuple[TensorSpec, ...], key: str, words: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        AnomalyDetection(model(*outputs, inputs=inputs), options(text))
    assert error.value.key == key
    assert words in error.value.problem
