"""Values at their limits: datatypes that do not hold a number, constants, lists of no size, empty galleries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.pipelines.passage import _cast
from tests.simulators.pipelines import PipelineRig, spec

INT32, INT64 = np.iinfo(np.int32), np.iinfo(np.int64)


@pytest.mark.parametrize(
    ("given", "datatype", "wanted"),
    [
        (np.float32([3e9, -3e9, 1.6]), Datatype.INT32, [INT32.max, INT32.min, 2]),
        (np.float32([1e30, -1e30]), Datatype.INT64, [INT64.max, INT64.min]),
        (np.float64([2.0**64, -1.0]), Datatype.UINT64, [2**64 - 1, 0]),
        (np.array([300, -1, 7]), Datatype.UINT8, [255, 0, 7]),
        (np.array([2**64 - 1, 5], np.uint64), Datatype.INT64, [INT64.max, 5]),
        (np.array([200, 5], np.uint8), Datatype.INT8, [127, 5]),
        (np.float32([1e6, -1e6, np.inf, 0.5]), Datatype.FP16, [65504, -65504, np.inf, 0.5]),
        (np.array([70000]), Datatype.FP16, [65504]),
        (np.float64([1e300, 2.0]), Datatype.FP32, [float(np.finfo(np.float32).max), 2]),
        (np.array([True, False]), Datatype.UINT8, [1, 0]),
    ],
)
def test_an_input_gets_the_nearest_value_that_its_datatype_holds(
    given: Array, datatype: Datatype, wanted: list[Any]
) -> None:
    cast = _cast(given, datatype)
    assert cast.dtype == datatype.dtype
    assert cast.tolist() == wanted
