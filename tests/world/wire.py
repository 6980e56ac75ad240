"""Requests and answers of one model as bytes, over gRPC and over HTTP with binary tensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import (
    deserialize_bytes_tensor,
    np_to_triton_dtype,
    serialize_byte_tensor,
    triton_to_np_dtype,
)

from tests.world.entry import Array, Tensors

HEADER_LENGTH = "Inference-Header-Content-Length"


def grpc_request(model: str, inputs: Tensors) -> bytes:
    """Serialise a ModelInferRequest."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        request.raw_input_contents.append(_raw(array))
    return bytes(request.SerializeToString())


def read_grpc(raw: bytes) -> Tensors:
    """Decode the outputs of a ModelInferResponse."""
    response = service_pb2.ModelInferResponse.FromString(raw)
    pairs = zip(response.outputs, response.raw_output_contents, strict=True)
    return {output.name: _array(content, output.datatype, tuple(output.shape)) for output, content in pairs}


def http_request(inputs: Tensors) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a request with binary tensors in both directions."""
    raw = {name: _raw(array) for name, array in inputs.items()}
    tensors = [
        {
            "name": name,
            "datatype": np_to_triton_dtype(array.dtype),
            "shape": list(array.shape),
            "parameters": {"binary_data_size": len(raw[name])},
        }
        for name, array in inputs.items()
    ]
    header = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    return {HEADER_LENGTH: str(len(header))}, header + b"".join(raw.values())


def read_http(headers: Mapping[str, str], body: bytes) -> Tensors:
    """Decode the outputs of an answer with binary tensors."""
    length = int(headers.get(HEADER_LENGTH, len(body)))
    outputs: dict[str, Any] = {}
    begin = length
    for output in json.loads(body[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        outputs[output["name"]] = _array(body[begin : begin + size], output["datatype"], tuple(output["shape"]))
        begin += size
    return outputs


def _raw(array: Array) -> bytes:
    if array.dtype.kind != "O":
        return array.tobytes()
    return bytes(serialize_byte_tensor(array).item()) if array.size else b""


def _array(raw: bytes, datatype: str, shape: tuple[int, ...]) -> Array:
    if datatype == "BYTES":
        return np.asarray(deserialize_bytes_tensor(raw)).reshape(shape)
    return np.frombuffer(raw, triton_to_np_dtype(datatype)).reshape(shape)
