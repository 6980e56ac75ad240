"""The shape of a body without a JSON part follows from the model, or the request is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import DATATYPES, Datatype
from gateway.serving.frontends.oip_raw import raw_request


def model(datatype: Datatype, *shapes: tuple[int, ...]) -> ModelManifest:
    """Return a model with one input for each of `shapes`; the output is batched where the first input can be."""
    inputs = tuple(TensorSpec(f"x{index}", datatype, shape) for index, shape in enumerate(shapes))
    return ModelManifest("m", "1", inputs, (TensorSpec("y", datatype, shapes[0]),), ())


@pytest.mark.parametrize(
    ("shape", "elements", "found"),
    [
        ((-1, 4), 4, (1, 4)),
        ((-1, 4, -1), 8, (1, 4, 2)),
        ((-1, -1), 0, (1, 0)),
        ((-1,), 1, (1,)),
        ((3, -1, 2), 12, (3, 2, 2)),
        ((2, 2), 4, (2, 2)),
        ((), 1, ()),
        ((0, 3), 0, (0, 3)),
    ],
)
def test_the_shape_follows_from_model_and_size(shape: tuple[int, ...], elements: int, found: tuple[int, ...]) -> None:
    values = np.arange(elements, dtype="<f4")
    asked = raw_request(memoryview(values.tobytes()), model(Datatype.FP32, shape), "1", caller="ann")
    array = asked.request.inputs["x0"].array
    assert (array.shape, array.ravel().tolist()) == (found, values.tolist())
    assert (asked.request.version, asked.request.caller, asked.wants_binary("y")) == ("1", "ann", True)


def test_an_open_first_dimension_that_counts_no_rows_is_found() -> None:
    waveform = replace(model(Datatype.FP32, (-1,)), batch=False)
    assert raw_request(memoryview(bytes(40)), waveform).request.inputs["x0"].array.shape == (10,)


@pytest.mark.parametrize("datatype", [d for d in DATATYPES.values() if d is not Datatype.BYTES], ids=lambda d: d.label)
def test_every_datatype(datatype: Datatype) -> None:
    asked = raw_request(memoryview(bytes(3 * datatype.wire_bytes)), model(datatype, (-1, -1)))
    assert (asked.request.inputs["x0"].array.shape, asked.request.inputs["x0"].datatype) == ((1, 3), datatype)


@pytest.mark.parametrize("shape", [(-1, 1), (1,), (-1,), ()])
@pytest.mark.parametrize("body", [b"", b"\xff\0 any bytes"])
def test_text_is_one_element(shape: tuple[int, ...], body: bytes) -> None:
    array = raw_request(memoryview(body), model(Datatype.BYTES, shape)).request.inputs["x0"].array
    assert (array.size, array.item()) == (1, body)


@pytest.mark.parametrize(
    ("manifest", "size_bytes", "says"),
    [
        (model(Datatype.FP32, (-1, 4)), 15, "FP32 of shape [1, 4], and 15 bytes do not fit"),
        (model(Datatype.FP32, (-1, 4)), 32, "FP32 of shape [1, 4], and 32 bytes do not fit"),
        (model(Datatype.FP32, (-1, 4, -1)), 20, "FP32 of shape [1, 4, -1], and 20 bytes do not fit"),
        (model(Datatype.FP32, (-1, 0, -1)), 4, "do not fit"),
        (model(Datatype.FP32, (-1, -1, -1)), 4, "more than one variable-sized dimension"),
        (model(Datatype.FP32, (2, -1, -1)), 4, "more than one variable-sized dimension"),
        (model(Datatype.BYTES, (-1, -1)), 4, "the model must have input shape [1]"),
        (model(Datatype.BYTES, (-1, 2)), 4, "the model must have input shape [1]"),
        (model(Datatype.FP32, (-1,), (-1,)), 4, "must only have 1 input (found 1) to be deduced but got 2 inputs"),
    ],
)
def test_what_does_not_follow_is_refused(manifest: ModelManifest, size_bytes: int, says: str) -> None:
    with pytest.raises(RequestError) as caught:
        raw_request(memoryview(bytes(size_bytes)), manifest)
    assert caught.value.fault is Fault.INVALID
    assert says in caught.value.message
