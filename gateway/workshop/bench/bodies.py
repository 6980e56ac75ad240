"""Requests as bytes: REST with binary tensors, REST with tensors in shared memory, gRPC."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from gateway.common.domain.tensor import Datatype, Tensor, encode_raw

METHOD = "/inference.GRPCInferenceService/ModelInfer"
REGION = "edge-gateway-bench"


@dataclass(frozen=True, slots=True)
class BenchModel:
    """Model that is measured: one version."""

    name: str
    version: str

    @property
    def path(self) -> str:
        """Path of the version in REST."""
        return f"/v2/models/{quote(self.name, safe='')}/versions/{quote(self.version, safe='')}"


def http_request(method: str, path: str, host: str, body: bytes, headers: Sequence[tuple[str, str]] = ()) -> bytes:
    """Return a request of HTTP/1.1 for a connection that stays open."""
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join((*lines, "", "")).encode() + body


def binary_body(tensors: Mapping[str, Tensor]) -> tuple[bytes, list[tuple[str, str]]]:
    """Return body and headers of a request with binary tensors, which asks for a binary answer."""
    raw = {name: encode_raw(tensor.datatype, tensor.array) for name, tensor in tensors.items()}
    inputs = [_described(name, tensor, {"binary_data_size": len(raw[name])}) for name, tensor in tensors.items()]
    header = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    headers = [("Content-Type", "application/octet-stream"), ("Inference-Header-Content-Length", str(len(header)))]
    return b"".join((header, *raw.values())), headers


def region_body(tensors: Mapping[str, Tensor]) -> tuple[bytes, list[tuple[str, str]]]:
    """Return body and headers of a request whose tensors are in the region, one behind the other."""
    inputs, offset = [], 0
    for name, tensor in tensors.items():
        size = len(encode_raw(tensor.datatype, tensor.array))
        place = {"shared_memory_region": REGION, "shared_memory_offset": offset, "shared_memory_byte_size": size}
        inputs.append(_described(name, tensor, place))
        offset += size
    body = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return body, [("Content-Type", "application/json")]


def json_body(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a request as JSON. Raise ValueError for texts and images, which JSON cannot hold as they are."""
    if any(tensor.datatype is Datatype.BYTES for tensor in tensors.values()):
        raise ValueError("texts and images are not measured as JSON; give numbers with --npz")
    inputs = [
        {**_described(name, tensor, {}), "data": tensor.array.ravel().tolist()} for name, tensor in tensors.items()
    ]
    return json.dumps({"inputs": inputs}).encode()


def region_content(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the bytes of the region."""
    return b"".join(encode_raw(tensor.datatype, tensor.array) for tensor in tensors.values())


def grpc_message(model: BenchModel, tensors: Mapping[str, Tensor]) -> bytes:
    """Return a ModelInferRequest, length-prefixed."""
    from gateway.serving.frontends.grpc_v2.codec.protocol import message

    made = message("inference.ModelInferRequest")(model_name=model.name, model_version=model.version)
    for name, tensor in tensors.items():
        made.inputs.add(name=name, datatype=tensor.datatype.label, shape=tensor.array.shape)
        made.raw_input_contents.append(encode_raw(tensor.datatype, tensor.array))
    content: bytes = made.SerializeToString()
    return b"\0" + len(content).to_bytes(4, "big") + content


def _described(name: str, tensor: Tensor, parameters: Mapping[str, object]) -> dict[str, object]:
    shape = list(tensor.array.shape)
    return {"name": name, "datatype": tensor.datatype.label, "shape": shape, "parameters": dict(parameters)}
