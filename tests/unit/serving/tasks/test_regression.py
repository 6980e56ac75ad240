"""Regression: names, units and scale of numbers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.serving.tasks.regression import Regression, RegressionResult
from tests.simulators.task_models import model, options, output


def predict(values: list[float], text: str = "", labels: tuple[str, ...] = ()) -> RegressionResult:
    task = Regression(model(output(shape=(-1, len(values))), labels=labels), options(text))
    return task.interpret({"y": np.array(values, np.float32)}, None)


def test_values_have_names_and_units() -> None:
    got = predict([20.5, 0.25], 'names = ["temperature", "humidity"]\nunits = ["°C", ""]')
    assert got.document() == {
        "values": [{"name": "temperature", "unit": "°C", "value": 20.5}, {"name": "humidity", "value": 0.25}]
    }
    assert got.tensors()["values"].tolist() == [20.5, 0.25]


def test_a_value_is_as_short_as_its_datatype_tells() -> None:
    found = predict([27.1, 0.3], 'names = ["a", "b"]\nscale = [1.0, 10.0]').document()
    assert [each["value"] for each in found["values"]] == [27.1, 3.0]


def test_names_that_are_not_given() -> None:
    assert predict([1.0]).document() == {"values": [{"name": "y", "value": 1.0}]}
    assert [entry["name"] for entry in predict([1.0, 2.0], labels=("a", "b")).document()["values"]] == ["a", "b"]


def test_standardised_targets_are_restored() -> None:
    """scikit-learn's StandardScaler is the reference."""
    from sklearn.preprocessing import StandardScaler

    targets = np.array([[1.0, 200.0], [3.0, 600.0], [8.0, -100.0]])
    scaler = StandardScaler().fit(targets)
    text = f'names = ["a", "b"]\nscale = {scaler.scale_.tolist()}\noffset = {scaler.mean_.tolist()}'
    for row, standardised in zip(targets, scaler.transform(targets), strict=True):
        assert np.allclose(predict(standardised.tolist(), text).values, row, rtol=1e-6)


def test_an_open_number_of_values_is_checked_in_each_row() -> None:
    task = Regression(model(output(shape=(-1, -1))), options('names = ["a", "b"]'))
    assert task.results[0].shape == (2,)
    with pytest.raises(RequestError, match="3 values") as error:
        task.interpret({"y": np.zeros(3)}, None)
    assert error.value.fault is Fault.UNSUPPORTED


def test_a_value_that_is_not_finite_is_null() -> None:
    document = predict([float("nan"), float("inf")], 'names = ["a", "b"]').document()
    assert [entry["value"] for entry in document["values"]] == [None, None]
    json.dumps(document, allow_nan=False)


REFUSALS = [
    ("", (-1, 2), "names", "must name the 2 values"),
    ('names = ["a"]', (-1, 2), "names", "1 are named"),
    ('names = ["a", "a"]', (-1, 2), "names", "different"),
    ("", (-1, -1), "names", "an open number of"),
    ('units = ["a", "b"]', (-1, 1), "units", "must be 1 or 1 texts"),
    (f'units = ["{"m" * 33}"]', (-1, 1), "units", "32 characters"),
    ("scale = [1.0, 2.0]", (-1, 1), "scale", "must hold 1 or 1"),
    ("offset = []", (-1, 1), "offset", "not 0"),
    ("zz = 1", (-1, 1), "zz", "unknown key"),
    ("", (-1, 2, 2), "output", "several axes"),
]


@pytest.mark.parametrize(("text", "shape", "key", "words"), REFUSALS)
def test_options_that_do_not_fit_are_refused(text: str, shape: tuple[int, ...], key: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Regression(model(output(shape=shape)), options(text))
    assert error.value.key == key
    assert words in error.value.problem
