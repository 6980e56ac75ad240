"""Every task with outputs of any size and any numbers: a document that JSON carries, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import TensorSpec, fits
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.tasks.catalog import TASKS
from gateway.serving.tasks.task import Task
from tests.simulators.task_models import model, options, output

OPEN = output(shape=(-1, -1, -1))
LABELS = ("a", "b", "c")
HOURLY = 'step = 1\nstep_unit = "h"\n'
OPEN_INPUT = TensorSpec("x", Datatype.FP32, (-1, -1, -1))
TRIALS: Mapping[str, Task] = {
    "classification": TASKS["audio-classification"](model(OPEN, labels=LABELS), options('pool = "mean"')),
    "several labels": TASKS["image-classification"](
        model(OPEN, labels=LABELS), options('pool = "max"\nactivation = "sigmoid"')
    ),
    "text": TASKS["text-recognition"](model(OPEN), options('charset = "ab"\nactivation = "softmax"')),
    "embedding": TASKS["embedding"](model(OPEN), options('pool = "mean"')),
    "score": TASKS["anomaly-detection"](model(OPEN), options('score = "y"\nthreshold = 1\nreduce = "max"')),
    "reconstruction": TASKS["anomaly-detection"](
        model(OPEN, inputs=(OPEN_INPUT,)), options('reconstruction = "y"\nthreshold = 1')
    ),
    "regression": TASKS["tabular-regression"](model(output(shape=(-1, -1))), options('names = ["a", "b"]')),
    "forecasting": TASKS["time-series-forecasting"](model(OPEN), options(f'{HOURLY}channels = ["a", "b", "c"]')),
}
SHAPES = st.sampled_from([(3,), (2,), (0,), (4, 3), (1, 3), (0, 3), (4, 0), (2, 2)])


@pytest.mark.parametrize("what", TRIALS)
@given(data=st.data())
def test_a_task_answers_or_refuses_and_nothing_else(what: str, data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    numbers = arrays.arrays(data.draw(st.sampled_from([np.float32, np.float64])), shape, elements=st.floats(width=32))
    outcome = interpreted(TRIALS[what], {"y": data.draw(numbers), "x": data.draw(numbers)})
    assert outcome in {"", Fault.UNSUPPORTED}


@pytest.mark.parametrize("what", TRIALS)
@pytest.mark.parametrize("numbers", [(np.inf, -np.inf), (1e308, 1e308), (1e300, -1e300), (np.nan, 0.0)])
def test_extreme_numbers_in_two_rows(what: str, numbers: tuple[float, float]) -> None:
    values = np.repeat(np.array(numbers), 3).reshape(2, 3)
    for shaped in (values, values[:, 0]):
        assert interpreted(TRIALS[what], {"y": shaped, "x": np.zeros(shaped.shape)}) in {"", Fault.UNSUPPORTED}


def interpreted(task: Task, outputs: Mapping[str, Array]) -> Fault | str:
    """Return what is wrong with the result, or the fault of the refusal."""
    try:
        result = task.interpret(outputs, None)
    except RequestError as error:
        return error.fault
    json.dumps(result.document(), allow_nan=False)
    tensors = result.tensors()
    wrong = [
        spec.name
        for spec in task.results
        if tensors[spec.name].dtype != spec.datatype.dtype or not fits(tensors[spec.name].shape, spec.shape)
    ]
    return ", ".join(wrong) or ("" if len(tensors) == len(task.results) else "other tensors")
