"""Inference requests for one frame: its bytes in shared memory, or in the request. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.serving.frontends.cameras.forms import FrameForm

Parts = tuple[bytes, ...]
"""Tensor's bytes on the wire, in pieces."""


def wire_parts(form: FrameForm, content: bytes) -> Parts:
    """Return the tensor's bytes: an element of BYTES has its length before it (Open Inference Protocol)."""
    return (content,) if form.layout else (len(content).to_bytes(4, "little"), content)


def region_request(form: FrameForm, shape: Sequence[int], region: str, size: int, outputs: Sequence[str]) -> bytes:
    """Return the body of a request whose tensor is the first `size` bytes of a region; the type is JSON."""
    return _header(form, shape, {"shared_memory_region": region, "shared_memory_byte_size": size}, outputs)


def binary_request(
    form: FrameForm, shape: Sequence[int], parts: Parts, outputs: Sequence[str]
) -> tuple[bytes, dict[str, str]]:
    """Return body and headers of a request that contains the tensor (Triton's binary tensor data extension)."""
    header = _header(form, shape, {"binary_data_size": sum(map(len, parts))}, outputs)
    headers = {"Content_Type": "application/octet-stream", "Inference_Header_Content_Length": str(len(header))}
    return b"".join((header, *parts)), headers


def _header(form: FrameForm, shape: Sequence[int], parameters: dict[str, Any], outputs: Sequence[str]) -> bytes:
    tensor = {"name": form.input, "datatype": form.datatype, "shape": list(shape), "parameters": parameters}
    document: dict[str, Any] = {"inputs": [tensor]}
    if outputs:
        document["outputs"] = [{"name": name} for name in outputs]
    return json.dumps(document).encode()
