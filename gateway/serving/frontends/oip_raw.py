"""Raw binary request of Triton: a body without a JSON part.

The body is the content of the model's only input, whose shape follows from the model, and the answer is binary
(Triton's binary tensor data extension, "Raw Binary Request").
"""

from __future__ import annotations

import math

import numpy as np

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.tensor import Array, Datatype, Tensor, decode_raw
from gateway.serving.domain.infer import InferRequest
from gateway.serving.frontends.oip_json import JsonRequest


def raw_request(body: memoryview, manifest: ModelManifest, version: str = "", *, caller: str = "") -> JsonRequest:
    """Return the request with this `body`: one row of the only input, all outputs in binary.

    The array is a view of `body` if its datatype allows. Raises RequestError INVALID, with Triton's message, if the
    shape does not follow from the model.
    """
    if len(manifest.inputs) != 1:
        raise _invalid(
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(manifest.inputs)} inputs in "
            f"'{manifest.name}' model; send a JSON part that describes them"
        )
    (spec,) = manifest.inputs
    shape = (1, *spec.shape[1:]) if manifest.batched else spec.shape
    if spec.datatype is not Datatype.BYTES:
        array = _elements(body, shape, spec)
    elif any(size != 1 for size in shape):
        raise _invalid(
            f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1], not {list(shape)}"
        )
    else:  # the whole body is the only element; no length precedes it
        array = np.empty(shape, object)
        array[...] = bytes(body)
    inputs = {spec.name: Tensor(spec.datatype, array)}
    return JsonRequest(InferRequest(manifest.name, inputs, version, caller=caller), binary_default=True)


def _elements(body: memoryview, shape: tuple[int, ...], spec: TensorSpec) -> Array:
    if shape.count(ROWS) > 1:
        raise _invalid(
            f"The shape of the raw input '{spec.name}' can not be deduced because there are more than one "
            f"variable-sized dimension in {list(shape)}; send a JSON part that says the shape"
        )
    unit_bytes = spec.datatype.wire_bytes * math.prod(size for size in shape if size != ROWS)
    units = len(body) // unit_bytes if unit_bytes else 0
    found = tuple(units if size == ROWS else size for size in shape)
    if spec.datatype.wire_bytes * math.prod(found) != len(body):
        raise _invalid(
            f"the whole body of a raw request is input '{spec.name}', {spec.datatype.label} of "
            f"shape {list(shape)}, and {len(body)} bytes do not fit that"
        )
    return decode_raw(spec.datatype, found, body, spec.name)


def _invalid(message: str) -> RequestError:
    return RequestError(Fault.INVALID, message)
