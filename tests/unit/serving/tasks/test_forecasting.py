"""Forecasting: axes in every order, channels, quantiles, time of a step."""

from __future__ import annotations

import json
from itertools import permutations

import numpy as np
import pytest

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.manifest import Window
from gateway.common.domain.tensor import Array
from gateway.serving.tasks.forecasting import AXES, Forecasting
from tests.simulators.task_models import model, options, output

HOURLY = 'step = 1\nstep_unit = "h"\n'
WINDOW = Window(("load", "price"), 96, 1, 0.25)


def forecast(values: Array, text: str = HOURLY, **changes: object) -> dict[str, object]:
    task = Forecasting(model(output(shape=(-1, *values.shape)), **changes), options(text))
    got = task.interpret({"y": values}, None)
    assert got.tensors()["forecast"].shape == task.results[0].shape
    document = got.document()
    json.dumps(document, allow_nan=False)
    return document


def test_one_channel() -> None:
    assert forecast(np.array([1.0, 2.0, np.nan])) == {
        "step": 1.0,
        "step_unit": "h",
        "channels": [{"name": "y", "values": [1.0, 2.0, None]}],
    }


def test_channels_and_step_of_the_window() -> None:
    got = forecast(
        np.array([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]]), 'units = ["MW", "EUR"]\nscale = [2, 1]', window=WINDOW
    )
    assert got == {
        "step": 4.0,
        "step_unit": "s",
        "channels": [
            {"name": "load", "unit": "MW", "values": [2.0, 4.0, 6.0]},
            {"name": "price", "unit": "EUR", "values": [10.0, 20.0, 30.0]},
        ],
    }


def test_quantiles_have_a_median_or_none() -> None:
    values = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    text = f'{HOURLY}axes = ["quantile", "step"]\nquantiles = [0.1, 0.5, 0.9]'
    (channel,) = forecast(values, text)["channels"]  # type: ignore[misc]
    assert channel["values"] == [3.0, 4.0]
    assert channel["quantiles"][2] == {"quantile": 0.9, "values": [5.0, 6.0]}
    (other,) = forecast(values, text.replace("0.5", "0.4"))["channels"]  # type: ignore[misc]
    assert "values" not in other


@pytest.mark.parametrize("axes", list(permutations(AXES)))
def test_axes_in_every_order(axes: tuple[str, ...]) -> None:
    values = np.arange(2 * 3 * 4.0).reshape(2, 3, 4)
    sizes = {"step": 2, "channel": 3, "quantile": 4}
    given = values.transpose([AXES.index(axis) for axis in axes])
    text = f'{HOURLY}axes = {list(axes)}\nchannels = ["a", "b", "c"]\nquantiles = [0.1, 0.2, 0.3, 0.4]'
    task = Forecasting(model(output(shape=(-1, *(sizes[axis] for axis in axes)))), options(text))
    assert np.array_equal(task.interpret({"y": given}, None).tensors()["forecast"], values)


def test_dimensions_of_size_one_do_not_count() -> None:
    assert forecast(np.array([[5.0], [6.0]]))["channels"] == [{"name": "y", "values": [5.0, 6.0]}]
    text = f'{HOURLY}axes = ["channel"]\nchannels = ["a", "b"]'
    assert forecast(np.array([[5.0, 6.0]]), text)["channels"] == [
        {"name": "a", "values": [5.0]},
        {"name": "b", "values": [6.0]},
    ]


def test_an_open_number_of_channels_is_checked_in_each_row() -> None:
    task = Forecasting(model(output(shape=(-1, -1, -1))), options(f'{HOURLY}channels = ["a", "b"]'))
    assert task.interpret({"y": np.zeros((7, 2))}, None).tensors()["forecast"].shape == (7, 2)
    with pytest.raises(RequestError, match=r"shape \[7, 3\]") as error:
        task.interpret({"y": np.zeros((7, 3))}, None)
    assert error.value.fault is Fault.UNSUPPORTED


REFUSALS = [
    ("", (-1, 5), "step", "missing"),
    ("step = 1", (-1, 5), "step_unit", "missing"),
    ('step = 1\nstep_unit = "y"', (-1, 5), "step_unit", "must be one of"),
    (f'{HOURLY}axes = ["step"]', (-1, 5, 2), "axes", "each of the 2 axes"),
    (f'{HOURLY}axes = ["step", "step"]', (-1, 5, 2), "axes", "each of the 2 axes"),
    (HOURLY, (-1, 5, 2), "channels", "must name the 2 values"),
    (HOURLY, (-1, 5, 2, 2, 2), "axes", "each of the 4 axes"),
    (f'{HOURLY}axes = ["step", "quantile"]', (-1, 5, 2), "quantiles", "each of the 2 quantiles"),
    (f'{HOURLY}axes = ["step", "quantile"]\nquantiles = [0.9, 0.1]', (-1, 5, 2), "quantiles", "ascending"),
    (f'{HOURLY}axes = ["step", "quantile"]\nquantiles = [0.0, 0.1]', (-1, 5, 2), "quantiles", "between 0 and 1"),
    (f"{HOURLY}quantiles = [0.5]", (-1, 5), "quantiles", "each of the 0 quantiles"),
    (f"{HOURLY}zz = 1", (-1, 5), "zz", "unknown key"),
]


@pytest.mark.parametrize(("text", "shape", "key", "words"), REFUSALS)
def test_options_that_do_not_fit_are_refused(text: str, shape: tuple[int, ...], key: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        Forecasting(model(output(shape=shape)), options(text))
    assert error.value.key == key
    assert words in error.value.problem
