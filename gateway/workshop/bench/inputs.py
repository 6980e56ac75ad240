"""Inputs of a measurement: generated as a trial generates them, until the gateway accepts one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import DATATYPES, Tensor
from gateway.serving.runtimes.generate import generated, samples
from gateway.workshop.bench.http_connection import LoadError

NO_SAMPLE = "accepts no generated input; give it inputs with --npz FILE or --image FILE"


def described(name: str, version: str, document: Mapping[str, Any]) -> ModelManifest:
    """Return the model as the metadata of a gateway describe it. Raise KeyError, TypeError if they are none."""
    return ModelManifest(name, version, _specs(document["inputs"]), _specs(document["outputs"]), ())


def accepted(manifest: ModelManifest, ask: Callable[[Mapping[str, Tensor]], None], limit: int) -> dict[str, Tensor]:
    """Return the first of `limit` samples for which `ask` raises no LoadError. Raise ConfigurationError."""
    refusal = ""
    for tensors in islice(_generated(manifest), limit):
        try:
            ask(tensors)
        except LoadError as error:
            refusal = str(error)
        else:
            return tensors
    raise ConfigurationError(f"{manifest.name} {NO_SAMPLE} (the last refusal: {refusal:.300})")


def _generated(manifest: ModelManifest) -> Iterator[dict[str, Tensor]]:
    types = {spec.name: spec.datatype for spec in manifest.inputs}
    for sample in samples(manifest):
        arrays = generated(manifest, sample)
        yield {name: Tensor(types[name], array) for name, array in arrays.items()}


def _specs(entries: Sequence[Mapping[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(each["name"], DATATYPES[each["datatype"]], tuple(each["shape"])) for each in entries)
