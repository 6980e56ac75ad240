"""Mapping between the manifest's tensors and a variant's own: names, datatypes and layouts. Decided once, at open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.common.domain.errors import VariantError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec, Variant
from gateway.common.domain.tensor import Array, Datatype

_OTHER_LAYOUT = {"NCHW": "NHWC", "NHWC": "NCHW", "NCL": "NLC", "NLC": "NCL", "LNC": "NLC"}


@dataclass(frozen=True, slots=True)
class Port:
    """Tensor as the engine offers it: `datatype` in memory; −1 in `shape` for a dimension of any size.

    `shape` None: the engine does not know the rank. `aliases`: other names of the same tensor.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...] | None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Passage:
    """Conversion of one tensor between manifest and engine. None: unchanged (`axes`, `dtype`, `shape`)."""

    name: str
    port: str
    axes: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    shape: tuple[int, ...] | None = None


def convert(passage: Passage, array: Array) -> Array:
    """Return the array on the other side of the passage, C-contiguous. Unless something changes, it is the same object.

    Raises VariantError if an integer does not fit the narrower type.
    """
    if passage.axes is not None:
        array = array.transpose(passage.axes)
    if passage.dtype is not None and array.dtype != passage.dtype:
        array = _cast(passage, array, passage.dtype)
    if passage.shape is not None:
        array = array.reshape(passage.shape)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def plan_inputs(manifest: ModelManifest, variant: Variant, ports: Sequence[Port]) -> tuple[Passage, ...]:
    """Return the passages from manifest to engine, one per input.

    Raises VariantError with a tensor that does not fit.
    """
    passages = tuple(_plan(manifest, variant, spec, ports, incoming=True) for spec in manifest.inputs)
    fed = {passage.port for passage in passages}
    for port in ports:
        if port.name not in fed:
            raise VariantError(
                f"variant {variant.name} wants the input {port.name!r}, which the manifest does not feed",
                remedy=f"add an [[input]] and bind it under [variant.bind] with name = {port.name!r} (EG-304)",
            )
    return passages


def plan_outputs(manifest: ModelManifest, variant: Variant, ports: Sequence[Port]) -> tuple[Passage, ...]:
    """Return the passages from engine to manifest, one per output.

    Outputs that the manifest does not name are not requested.
    """
    return tuple(_plan(manifest, variant, spec, ports, incoming=False) for spec in manifest.outputs)


def takes_single_rows(manifest: ModelManifest, passages: Sequence[Passage], ports: Sequence[Port]) -> bool:
    """Return True if a batch must be run row by row: the graph's first dimension counts rows, and is fixed at 1."""
    bound = {passage.port for passage in passages if passage.axes is None or passage.axes[0] == 0}
    return manifest.batched and any(
        port.shape is not None and port.shape[:1] == (1,) for port in ports if port.name in bound
    )


def _plan(
    manifest: ModelManifest, variant: Variant, spec: TensorSpec, ports: Sequence[Port], *, incoming: bool
) -> Passage:
    wanted = variant.binding(spec.name)
    port = next((each for each in ports if wanted.name == each.name or wanted.name in each.aliases), None)
    if port is None:
        role = "input" if incoming else "output"
        offered = ", ".join(repr(each.name) for each in ports) or "none"
        raise VariantError(
            f"variant {variant.name} has no {role} called {wanted.name!r} for {spec.name!r}; it has {offered}",
            remedy=f"name the graph's own tensor: [variant.bind] {spec.name} = {{name = …}} (EG-305)",
        )
    axes = _axes(variant, spec, wanted.layout, port, manifest, incoming=incoming)
    own = _permuted(spec.shape, axes) if wanted.shape is None else wanted.shape
    if port.shape is not None and not _fits(own, port.shape, manifest, incoming=incoming):
        raise VariantError(
            f"tensor {spec.name!r}: the manifest says {list(spec.shape)}, but variant {variant.name} has "
            f"{list(port.shape)} ({port.name!r})",
            remedy="correct the shape, or bind a layout under [variant.bind] (EG-306)",
        )
    if _family(spec.datatype) != _family(port.datatype):
        raise VariantError(
            f"tensor {spec.name!r}: the manifest says {spec.datatype.label}, but variant {variant.name} has "
            f"{port.datatype.label} ({port.name!r})",
            remedy="correct the datatype; floats convert to floats and integers to integers, nothing else (EG-307)",
        )
    target = port.datatype if incoming else spec.datatype
    differs = port.datatype.dtype != spec.datatype.dtype
    if axes is not None and not incoming:
        axes = tuple(int(axis) for axis in np.argsort(axes))
    shape = None if wanted.shape is None else wanted.shape if incoming else spec.shape
    return Passage(spec.name, port.name, axes, target.dtype if differs else None, shape)


def _axes(
    variant: Variant, spec: TensorSpec, own: str, port: Port, manifest: ModelManifest, *, incoming: bool
) -> tuple[int, ...] | None:
    """Return the permutation from the manifest's layout to the variant's own, or None if they are equal."""
    if not own:
        return None
    seen = spec.layout or _guess(spec, own, port, manifest, incoming=incoming)
    if seen == own:
        return None
    if sorted(seen) != sorted(own) or len(own) != len(spec.shape):
        raise VariantError(
            f"tensor {spec.name!r} of variant {variant.name}: layout {seen} of shape {list(spec.shape)} "
            f"cannot be turned into {own}",
            remedy="give [[input]] or [[output]] and the binding layouts with the same axes",
        )
    return tuple(seen.index(axis) for axis in own)


def _guess(spec: TensorSpec, own: str, port: Port, manifest: ModelManifest, *, incoming: bool) -> str:
    """Return the manifest's layout if only the binding names one: the one of the pair with which the shapes agree."""
    if port.shape is None or len(own) != len(spec.shape) or _fits(spec.shape, port.shape, manifest, incoming=incoming):
        return own
    other = _OTHER_LAYOUT[own]
    turned = _permuted(spec.shape, tuple(other.index(axis) for axis in own))
    return other if _fits(turned, port.shape, manifest, incoming=incoming) else own


def _permuted(shape: tuple[int, ...], axes: tuple[int, ...] | None) -> tuple[int, ...]:
    return shape if axes is None else tuple(shape[axis] for axis in axes)


def _fits(shape: Sequence[int], own: Sequence[int], manifest: ModelManifest, *, incoming: bool) -> bool:
    if len(shape) != len(own):
        return False
    pairs = list(zip(shape, own, strict=True))
    if manifest.batched and pairs and pairs[0] == (ROWS, 1):
        pairs = pairs[1:]
    return all(mine in (size, ROWS) or (size == ROWS and not incoming) for size, mine in pairs)


def _family(datatype: Datatype) -> str:
    """Return the family of a datatype: floats, integers, booleans or texts.

    Conversion is possible within a family only.
    """
    return datatype.dtype.kind.replace("u", "i")


def _cast(passage: Passage, array: Array, dtype: np.dtype[Any]) -> Array:
    if dtype.kind in "iu" and array.size and not np.can_cast(array.dtype, dtype, "safe"):
        bounds = np.iinfo(dtype)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise VariantError(f"tensor {passage.name!r} holds integers that do not fit {dtype.name}")
    with np.errstate(over="ignore"):  # a float outside the narrower type's range becomes infinite (IEEE 754)
        return array.astype(dtype)
