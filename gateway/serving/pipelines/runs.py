"""Steps of a compiled pipeline, and the columns that the outputs of their models are made of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.pipeline import ModelStep, keeps_state
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.domain.infer import RequestedOutput
from gateway.serving.pipelines.columns import (
    FLAG,
    IMAGE,
    NUMBER,
    TEXT,
    ColumnType,
    ColumnValue,
    RowSet,
    Values,
)
from gateway.serving.pipelines.functions import named
from gateway.serving.pipelines.slices import Slices
from gateway.serving.tasks.interpreter import ABSENT, PREFIX

OBJECTS = {
    "box": ("boxes", ColumnType(NUMBER, (4,), Datatype.FP32)),
    "score": ("scores", ColumnType(NUMBER, (), Datatype.FP32)),
    "class": ("classes", ColumnType(NUMBER, (), Datatype.INT32)),
    "label": ("classes", ColumnType(TEXT, (), Datatype.BYTES)),
    "corners": ("corners", ColumnType(NUMBER, (4, 2), Datatype.FP32)),
    "angle": ("angles", ColumnType(NUMBER, (), Datatype.FP32)),
}
"""Columns of the objects that a detector finds, and the results of its task that they are made of."""
COUNTED = "classes"
"""Result of detectors that states how many objects a row has: ABSENT follows them."""
PLACES = frozenset({"boxes", "corners", "keypoints"})
"""Results that are places in the image that the model got."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Input of a model, and its value: a tensor, or images, which the gateway or the model itself makes one.

    Images with equal `key` are prepared in the same way, once for all steps.
    """

    spec: TensorSpec
    value: ColumnValue
    key: object = None

    @property
    def shows(self) -> bool:
        """Return True if the value is an image."""
        return self.value.type.kind == IMAGE


@dataclass(slots=True)
class Column:
    """Column of a model's step: its slot, the output that it is made of, and how.

    `has_rows`: the output's first dimension counts rows. `other`: values of skipped rows. `fallback`: of a failed run.
    """

    slot: int
    type: ColumnType
    output: str
    make: Callable[[Array], Array]
    has_rows: bool = True
    other: ColumnValue | None = None
    fallback: float | bytes | bool | None = None


@dataclass(slots=True)
class ModelRun:
    """Run of a model on the rows of a step. `made`: the rows of the objects that it finds; None: it has a result a row.

    `ran`: slot of the flags of the rows that have a result of their own.
    `wanted`: the outputs that are read, known when all steps are compiled.
    """

    step: ModelStep
    manifest: ModelManifest
    needs: frozenset[int]
    rows: RowSet
    feeds: tuple[Feed, ...]
    when: ColumnValue | None
    made: RowSet | None
    ran: int
    columns: dict[str, Column] = field(default_factory=dict)
    wanted: tuple[RequestedOutput, ...] = ()
    batched: bool = True

    @property
    def name(self) -> str:
        """Return the step's name."""
        return self.step.name

    @property
    def keeps_state(self) -> bool:
        """Return True for a model with sequences: its rows run one after the other."""
        return self.manifest.sequence is not None

    def fits(self, manifest: ModelManifest) -> bool:
        """Return True if the step holds for another version of the model as well."""
        return manifest is self.manifest or signature(manifest) == signature(self.manifest)

    def settle(self) -> None:
        """Note which outputs of the model are read."""
        named = [*([self.counted] if self.made else []), *(column.output for column in self.columns.values())]
        self.wanted = tuple(RequestedOutput(name) for name in dict.fromkeys(named or [self.counted]))
        self.batched = self.manifest.batched

    @property
    def counted(self) -> str:
        """Return the output that tells how many objects were found; for other models the first one."""
        names = [spec.name for spec in self.manifest.outputs]
        return next((name for name in names if self.made and name.removeprefix(PREFIX) == COUNTED), names[-1])


@dataclass(frozen=True, slots=True)
class LocalRun:
    """Step that the gateway computes itself. `is_long`: it takes too long for the event loop with these values.

    `divided`: `apply` in slices, for a thread.
    """

    name: str
    needs: frozenset[int]
    apply: Callable[[Values], None]
    is_long: Callable[[Values], bool] = lambda _: False
    divided: Callable[[Values], Slices[None]] | None = None

    def slices(self, values: Values) -> Slices[None]:
        """Apply it in slices, of which there is one if it is not divided."""
        if self.divided is not None:
            yield from self.divided(values)
        else:
            self.apply(values)


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Decoding of an input's images, as pixels."""

    name: str
    slot: int
    needs: frozenset[int] = frozenset()


@dataclass(slots=True)
class Turn:
    """Turn of a request in its stream: its arrival in seconds, and the states of steps by name, as they become."""

    at_s: float
    states: dict[str, Any]


Run = ModelRun | LocalRun | DecodeRun


def signature(manifest: ModelManifest) -> tuple[object, ...]:
    """Return what a pipeline sees of a model."""
    return (
        manifest.inputs,
        manifest.outputs,
        manifest.labels,
        manifest.task,
        manifest.answered,
        manifest.batched,
        manifest.max_batch_rows,
        manifest.sequence or keeps_state(manifest),
    )


def finds_objects(manifest: ModelManifest) -> bool:
    """Return True for a detector."""
    results = {name.removeprefix(PREFIX) for name in manifest.answered}
    return {"boxes", "scores", "classes"} <= results


def column_names(manifest: ModelManifest) -> list[str]:
    """Return the columns of a step that runs a model."""
    finds = finds_objects(manifest)
    own = [spec.name.removeprefix(PREFIX) for spec in manifest.outputs]
    if not finds:
        return own
    return [name for name, (output, _) in OBJECTS.items() if output in own] + (
        ["keypoints"] if "keypoints" in own else []
    )


def column_of(manifest: ModelManifest, name: str) -> tuple[str, ColumnType, Callable[[Array], Array]] | None:
    """Return the output of a column, its type, and how the output's rows become its values; None if there is none."""
    specs = {
        spec.name.removeprefix(PREFIX) if spec.name in manifest.answered else spec.name: spec
        for spec in manifest.outputs
    }
    if finds_objects(manifest):
        known = OBJECTS.get(name)
        spec = specs.get(known[0] if known else name)
        if name not in column_names(manifest) or spec is None or spec.shape[1:2] != (-1,):
            return None
        of_type = known[1] if known else ColumnType(NUMBER, spec.shape[2:], spec.datatype)
        labels = manifest.labels
        return spec.name, of_type, (lambda rows: named(rows, labels)) if name == "label" else _same
    spec = specs.get(name)
    if spec is None:
        return None
    has_rows = manifest.batched or spec.name in manifest.answered
    inner = row_shape(spec, has_rows=has_rows)
    kind = TEXT if spec.datatype is Datatype.BYTES else FLAG if spec.datatype is Datatype.BOOL else NUMBER
    is_ranked = manifest.task.endswith(("classification", "keyword-spotting")) and spec.name in manifest.answered
    if is_ranked and inner == (-1,) and name in {"class", "score", "label"}:  # best first
        return spec.name, ColumnType(kind, (), spec.datatype), _best_text if kind == TEXT else _best
    if inner == (1,):
        return spec.name, ColumnType(kind, (), spec.datatype), lambda rows: rows.reshape(-1)
    is_one = not has_rows and len(inner) < len(spec.shape)
    return spec.name, ColumnType(kind, inner, spec.datatype), _without_one if is_one else _same


def row_shape(spec: TensorSpec, *, has_rows: bool) -> tuple[int, ...]:
    """Return the shape of one row. Of a model without rows, a first size of 1 is taken for the number of rows."""
    return spec.shape[1:] if has_rows or spec.shape[:1] == (1,) else spec.shape


def _without_one(rows: Array) -> Array:
    """Return answers [n, 1, …] as rows [n, …]."""
    return rows.reshape(len(rows), *rows.shape[2:])


def _same(rows: Array) -> Array:
    return rows


def _best(rows: Array) -> Array:
    """Return the first of the listed classes; ABSENT, or 0 as a score, where none is listed."""
    if rows.shape[1]:
        return rows[:, 0]
    return np.full(len(rows), ABSENT if rows.dtype.kind == "i" else 0, rows.dtype)


def _best_text(rows: Array) -> Array:
    found = np.empty(len(rows), object)
    found[:] = [row[0] or b"" if len(row) else b"" for row in rows]
    return found


def decode_next_to_pixels(steps: Sequence[Sequence[str]], pixels: set[str]) -> None:
    """Add to `pixels` whole images of steps that get other images as pixels: such a step prepares all of them itself.

    `steps`: the expressions of each step's images. `pixels`: the inputs that are decoded for expressions.
    """
    left = [images for images in steps if len(images) > 1]
    while mixed := [images for images in left if any(not text.isidentifier() or text in pixels for text in images)]:
        for images in mixed:
            pixels.update(filter(str.isidentifier, images))
            left.remove(images)


def may_fit(given: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return True if shapes are equal, or may be: -1 stands for any size."""
    pairs = zip(given, wanted, strict=False)
    return len(given) == len(wanted) and all(a == b or -1 in {a, b} for a, b in pairs)


def elements(shape: Sequence[int]) -> int:
    """Return the number of elements; 0 if it is not known."""
    return int(np.prod(shape)) if all(size > 0 for size in shape) else 0
