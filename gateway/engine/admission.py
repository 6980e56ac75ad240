"""Admission: a request held against the manifest, before it costs anything.

Every refusal is a RequestError that names the tensor, what was sent and what is wanted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gateway.domain.errors import Fault, RequestError
from gateway.domain.infer import InferRequest, RequestedOutput
from gateway.domain.manifest import ROWS, ModelManifest, TensorSpec, fits
from gateway.domain.tensor import Datatype, Tensor


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that fits: tensors by name, rows it adds to a batch (1 where the model has no batch dimension)."""

    tensors: dict[str, Tensor]
    rows: int
    outputs: tuple[RequestedOutput, ...]


def admit(request: InferRequest, manifest: ModelManifest, max_batch_rows: int) -> Admitted:
    """Check names, datatypes, shapes, finiteness, rows and requested outputs. Raises RequestError INVALID."""
    _check_names(request, manifest)
    rows = {_check_tensor(spec, request.inputs[spec.name], manifest) for spec in manifest.inputs}
    if not manifest.batched:
        rows = {1}
    if len(rows) != 1:
        raise _invalid(manifest, f"the inputs differ in their first dimension (rows): {sorted(rows)}")
    count = rows.pop()
    if not 1 <= count <= max_batch_rows:
        raise _invalid(manifest, f"batch of {count} rows; between 1 and {max_batch_rows} are served")
    return Admitted(request.inputs, count, _outputs(request, manifest))


def encoded_images(spec: TensorSpec, tensor: Tensor) -> bool:
    """Whether the tensor holds encoded images for an input that declares how to decode them (contracts.md)."""
    return tensor.datatype is Datatype.BYTES and spec.preprocess is not None


def _check_names(request: InferRequest, manifest: ModelManifest) -> None:
    wanted = {spec.name for spec in manifest.inputs}
    for name in request.inputs.keys() - wanted:
        raise _invalid(manifest, f"unexpected inference input '{name:.200}'; the inputs are {_listed(wanted)}")
    for name in sorted(wanted - request.inputs.keys()):
        raise _invalid(manifest, f"input '{name}' is missing; the inputs are {_listed(wanted)}")


def _check_tensor(spec: TensorSpec, tensor: Tensor, manifest: ModelManifest) -> int:
    shape = tensor.array.shape
    if encoded_images(spec, tensor):
        if len(shape) not in {1, 2} or (len(shape) == 2 and shape[1] != 1):
            raise _invalid(
                manifest, f"encoded images for input '{spec.name}' need the shape [n] or [n,1], not {list(shape)}"
            )
        if spec.shape[0] not in {ROWS, shape[0]}:
            raise _invalid(manifest, f"input '{spec.name}' takes {spec.shape[0]} encoded images, not {shape[0]}")
        return int(shape[0])
    if tensor.datatype is not spec.datatype:
        raise _invalid(
            manifest, f"input '{spec.name}' has datatype {tensor.datatype.label}, expected {spec.datatype.label}"
        )
    if not fits(shape, spec.shape):
        raise _invalid(manifest, f"input '{spec.name}' has shape {list(shape)}, expected {list(spec.shape)}")
    if spec.finite and tensor.array.dtype.kind == "f" and not np.isfinite(tensor.array).all():
        raise _invalid(manifest, f"input '{spec.name}' holds NaN or infinity, which this model refuses")
    return int(shape[0]) if shape else 1


def _outputs(request: InferRequest, manifest: ModelManifest) -> tuple[RequestedOutput, ...]:
    if not request.outputs:
        return tuple(RequestedOutput(spec.name) for spec in manifest.outputs)
    known = {spec.name: spec for spec in manifest.outputs}
    seen: set[str] = set()
    for output in request.outputs:
        if output.name not in known:
            raise _invalid(
                manifest, f"unexpected inference output '{output.name:.200}'; the outputs are {_listed(set(known))}"
            )
        datatype = known[output.name].datatype
        if output.classification and datatype in {Datatype.BYTES, Datatype.BOOL}:
            raise _invalid(manifest, f"output '{output.name}' is {datatype.label}: no scores to classify")
        if output.name in seen:
            raise RequestError(Fault.INVALID, f"output '{output.name}' already exists in request")
        seen.add(output.name)
    return request.outputs


def _listed(names: set[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names))


def _invalid(manifest: ModelManifest, problem: str) -> RequestError:
    return RequestError(Fault.INVALID, f"model '{manifest.name}' version {manifest.version}: {problem}")
