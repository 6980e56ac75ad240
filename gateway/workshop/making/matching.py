"""Tensors of several files of one model: which tensor of a file is which tensor of the manifest. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ROWS, Binding, TensorSpec
from gateway.workshop.making.model_file import ModelFile
from gateway.workshop.making.tensor_guesses import merged_shape

_SWAPPED = {"NCHW": "NHWC", "NHWC": "NCHW"}


def match_tensors(
    specs: Sequence[TensorSpec], file: ModelFile, own: Sequence[TensorSpec]
) -> tuple[dict[str, Binding], list[tuple[int, ...]]]:
    """Return the binding of each tensor in `own` (the inputs or the outputs of `file`), and the shapes that fit both.

    A tensor of the same name is taken first, then the only one that fits, then the one in the same place. Raises
    ConfigurationError if a tensor has no counterpart.
    """
    bindings: dict[str, Binding] = {}
    shapes: list[tuple[int, ...]] = []
    left = list(own)
    for place, spec in enumerate(specs):
        fitting = [each for each in left if _fit(spec, each)]
        named = [each for each in fitting if each.name == spec.name]
        placed = [each for each in fitting if place < len(own) and each is own[place]]
        found = next(iter(named or (fitting if len(fitting) == 1 else placed)), None)
        if found is None:
            raise _no_variant(spec, file, own)
        left.remove(found)
        layout, shape = _fit(spec, found) or ("", spec.shape)
        bindings[spec.name] = Binding(found.name, layout)
        shapes.append(shape)
    return bindings, shapes


def _fit(spec: TensorSpec, own: TensorSpec) -> tuple[str, tuple[int, ...]] | None:
    """Return the layout of a file's tensor and the manifest's shape that both accept; None if they do not agree."""
    if _family(spec) != _family(own):
        return None
    layouts = [own.layout] if own.layout else [spec.layout, *filter(None, [_SWAPPED.get(spec.layout)])]
    for layout in layouts:
        turned = _turned(own.shape, layout, spec.layout)
        shape = merged_shape(_with_rows(spec.shape), _with_rows(turned))
        if shape is not None:
            return layout, (spec.shape[:1] + shape[1:])
    return None


def _with_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with an open first dimension in place of 1: the gateway runs rows one after the other."""
    return (ROWS, *shape[1:]) if shape[:1] == (1,) else shape


def _turned(shape: tuple[int, ...], layout: str, wanted: str) -> tuple[int, ...]:
    if not layout or layout == wanted or len(shape) != len(layout):
        return shape
    return tuple(shape[layout.index(axis)] for axis in wanted)


def _family(spec: TensorSpec) -> str:
    """Return the family of a datatype, as bindings convert: floats, integers, booleans, texts."""
    return spec.datatype.dtype.kind.replace("u", "i")


def _no_variant(spec: TensorSpec, file: ModelFile, own: Sequence[TensorSpec]) -> ConfigurationError:
    offered = ", ".join(f"{each.name!r} {each.datatype.label} {list(each.shape)}" for each in own[:4]) or "none"
    problem = (
        f"is no variant of the first file: nothing fits {spec.name!r} {spec.datatype.label} {list(spec.shape)}; it has "
        f"{offered}; make a model of its own of it"
    )
    return ConfigurationError(problem, file=str(file.path))
