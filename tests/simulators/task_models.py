"""Manifests of models with given outputs, and the options of their tasks."""

from __future__ import annotations

from gateway.common.domain.document import Table, read_document
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from tests.simulators.engine_rig import manifest

ROW_INPUT = TensorSpec("x", Datatype.FP32, (-1, 4))


def output(name: str = "y", shape: tuple[int, ...] = (-1, 3), datatype: Datatype = Datatype.FP32) -> TensorSpec:
    """Return the declaration of an output."""
    return TensorSpec(name, datatype, shape)


def model(
    *outputs: TensorSpec, labels: tuple[str, ...] = (), inputs: tuple[TensorSpec, ...] = (ROW_INPUT,), **changes: object
) -> ModelManifest:
    """Return the manifest of a model with rows."""
    return manifest(inputs=inputs, outputs=outputs or (output(),), labels=labels, **changes)


def options(text: str = "") -> Table:
    """Return the options of a task from TOML."""
    return read_document(text, "m/1/manifest.toml")
