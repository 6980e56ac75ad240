"""Samples from recorded requests: a JSON body of the Open Inference Protocol (v2, "Inference Request") in each line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ModelManifest, TensorSpec, fits
from gateway.common.domain.tensor import Array, Datatype
from gateway.workshop.making.samples import joined_samples, with_defaults


def read_requests(content: bytes, manifest: ModelManifest) -> dict[str, Array]:
    """Return the samples [samples, …] of all requests by input: their rows, or a request each if a model has no rows.

    Raises ValueError with the line.
    """
    parts = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            try:
                parts.append(_samples(json.loads(line), manifest))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
                words = str(error) if isinstance(error, ValueError) else "it is no body of an inference request"
                raise ValueError(f"line {number}: {words}") from error
    if not parts:
        raise ValueError("it has no requests")
    return joined_samples(parts)


def _samples(body: Mapping[str, Any], manifest: ModelManifest) -> dict[str, Array]:
    sent = {entry["name"]: entry for entry in body["inputs"]}
    arrays = {spec.name: _array(sent[spec.name], spec) for spec in manifest.inputs if spec.name in sent}
    if missing := next((spec.name for spec in manifest.inputs if spec.name not in sent and spec.default is None), ""):
        raise ValueError(f"the request has no input {missing!r}")
    if not manifest.batched:
        arrays = {name: array[np.newaxis] for name, array in arrays.items()}
    return with_defaults(arrays, manifest)


def _array(entry: Mapping[str, Any], spec: TensorSpec) -> Array:
    if "data" not in entry:
        raise ValueError(f"input {spec.name!r} has no data in JSON; record requests that clients send as JSON")
    if spec.datatype is Datatype.BYTES:
        raise ValueError(f"input {spec.name!r} takes texts, which are no calibration data")
    if entry["datatype"] != spec.datatype.label:
        raise ValueError(f"input {spec.name!r} has the datatype {entry['datatype']!r:.20}, not {spec.datatype.label}")
    array = np.asarray(entry["data"], spec.datatype.dtype).reshape(entry["shape"])
    if not fits(array.shape, spec.shape):
        raise ValueError(f"input {spec.name!r} has the shape {list(array.shape)}, expected {list(spec.shape)}")
    return array
