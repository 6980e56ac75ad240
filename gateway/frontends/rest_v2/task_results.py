"""Requests for the result of a model's task, and the JSON of the answer. Pure functions."""

from __future__ import annotations

import numpy as np

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest
from gateway.domain.manifest import ModelManifest
from gateway.domain.tensor import Datatype, Tensor

ENCODED = frozenset({"image/jpeg", "image/png", "audio/wav"})
"""Content types of a body that is one image or recording."""


def media_of(content_type: str) -> str:
    """Return the media type of a Content-Type header, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def check_task(manifest: ModelManifest, media: str) -> str:
    """Return the name of the output with results.

    Raises RequestError INVALID for a model without a task, and for a content that the model does not take.
    """
    if not manifest.answered:
        problem = f"model '{manifest.name}' has no task, so that its outputs are tensors only; send it to /infer"
        raise RequestError(Fault.INVALID, f"{problem}, or declare [task] in its manifest")
    if media in ENCODED and [spec.takes_encoded for spec in manifest.inputs] != [True]:
        problem = f"model '{manifest.name}' takes no {media} as its only input; send an inference request in JSON"
        raise RequestError(Fault.INVALID, problem)
    return manifest.answered[0]


def encoded_request(manifest: ModelManifest, encoded: bytes, names: tuple[str, str], caller: str) -> InferRequest:
    """Return the request for one encoded image or recording; `names` are model and version of the request."""
    content = np.empty(1, object)
    content[0] = encoded
    model, version = names
    return InferRequest(model, {manifest.inputs[0].name: Tensor(Datatype.BYTES, content)}, version, caller=caller)


def result_body(results: Tensor) -> bytes:
    """Return the result of the only row, or `{"results": […]}` with one for each of several rows."""
    rows = list(results.array.ravel())
    return bytes(rows[0]) if len(rows) == 1 else b'{"results": [' + b", ".join(rows) + b"]}"
