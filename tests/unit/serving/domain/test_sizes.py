"""Largest requests from declared shapes."""

from __future__ import annotations

import pytest

from gateway.common.domain.manifest import ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.tensor import Datatype
from gateway.serving.domain.sizes import RequestSizes, request_sizes, widest

OPEN = RequestSizes(None, None)


def sizes(*inputs: TensorSpec, rows: int = 8, batch: bool | None = True) -> RequestSizes:
    outputs = (TensorSpec("y", Datatype.FP32, (inputs[0].shape[0],)),)
    return request_sizes(ModelManifest("m", "1", inputs, outputs, (), batch=batch), rows, 100)


def test_a_bare_model_has_no_bound_of_rows() -> None:
    assert sizes(TensorSpec("x", Datatype.FP32, (-1, 3)), batch=None) == OPEN
    assert sizes(TensorSpec("x", Datatype.FP32, (4, 3)), batch=None) == RequestSizes(12 * 4 + 100, 12 * 64 + 100)


@pytest.mark.parametrize(
    ("datatype", "binary_bytes"),
    [
        (Datatype.FP32, 4),
        (Datatype.FP64, 8),
        (Datatype.FP16, 10),
        (Datatype.BOOL, 1),
        (Datatype.INT8, 10),
        (Datatype.UINT64, 10),
    ],
)
def test_rows_times_elements(datatype: Datatype, binary_bytes: int) -> None:
    """A negative number in typed contents takes ten bytes, whatever its datatype."""
    assert sizes(TensorSpec("x", datatype, (-1, 3, 5))) == RequestSizes(8 * 15 * binary_bytes + 100, 8 * 15 * 64 + 100)


def test_inputs_add_up() -> None:
    x, z = TensorSpec("x", Datatype.FP32, (-1, 2)), TensorSpec("z", Datatype.FP64, (-1, 3))
    assert sizes(x, z) == RequestSizes(8 * (8 + 24) + 100, 8 * 5 * 64 + 100)


def test_without_rows_the_shape_is_all() -> None:
    assert sizes(TensorSpec("x", Datatype.FP32, (1, 2))) == RequestSizes(108, 228)


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec("x", Datatype.FP32, (-1, -1)),
        TensorSpec("x", Datatype.FP32, (1, -1)),
        TensorSpec("x", Datatype.BYTES, (-1, 1)),
        TensorSpec("x", Datatype.FP32, (-1, 3, 8, 8), preprocess=Preprocess(("jpeg",))),
    ],
    ids=["open", "open without rows", "BYTES", "images"],
)
def test_what_the_model_leaves_open(spec: TensorSpec) -> None:
    assert sizes(spec) == OPEN


def test_of_several_versions_the_largest_counts() -> None:
    one, other = RequestSizes(10, 40), RequestSizes(20, 30)
    assert widest([one, other]) == RequestSizes(20, 40)
    assert widest([one, OPEN]) == OPEN
