"""Plan of a pipeline: its steps compiled against the manifests of its models, and what callers see of it. Pure.

Types, shapes, labels and names are checked here, before a request comes. The plan holds as long as the manifests do.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gateway.common.domain.document import read_document
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.expressions import Expression, ExpressionError
from gateway.common.domain.manifest import ROWS, ModelManifest, TensorSpec
from gateway.common.domain.pipeline import (
    IMAGE,
    ROWS_LIMIT,
    TEXT,
    MatchStep,
    MergeStep,
    ModelStep,
    Output,
    Pipeline,
    PipelineInput,
    RuleStep,
    SelectStep,
    Step,
    TileStep,
)
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.domain.infer import RequestedOutput
from gateway.serving.pipelines.columns import (
    FLAG,
    NUMBER,
    ColumnType,
    RowSet,
    Scope,
    Value,
    Values,
    common_rows,
    compiled,
    lifted,
    named,
    spread,
)
from gateway.serving.tasks.boxes import iou_overlaps, suppress
from gateway.serving.tasks.candidates import within_classes
from gateway.serving.tasks.interpreter import ABSENT, PREFIX, RESULT
from gateway.serving.tasks.views import tiles

OBJECTS = {
    "box": ("boxes", ColumnType(NUMBER, (4,), Datatype.FP32)),
    "score": ("scores", ColumnType(NUMBER, (), Datatype.FP32)),
    "class": ("classes", ColumnType(NUMBER, (), Datatype.INT32)),
    "label": ("classes", ColumnType(TEXT, (), Datatype.BYTES)),
    "corners": ("corners", ColumnType(NUMBER, (4, 2), Datatype.FP32)),
    "angle": ("angles", ColumnType(NUMBER, (), Datatype.FP32)),
}
"""Columns of the objects that a detector finds, and the results of its task that they are made of."""
DIGITS = 6
"""Decimals of numbers in documents."""
COUNTED = "classes"
"""Result of detectors that states how many objects a row has: ABSENT follows them."""
PLACES = frozenset({"boxes", "corners", "keypoints"})
"""Results that are places in the image that the model got."""
IMAGE_TYPE = ColumnType(IMAGE, (), Datatype.BYTES)


@dataclass(frozen=True, slots=True)
class Feed:
    """Input of a model, and its value: a tensor, or images, which the gateway or the model itself makes one."""

    spec: TensorSpec
    value: Value

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
    other: Value | None = None
    fallback: Any = None


@dataclass(slots=True)
class ModelRun:
    """Run of a model on the rows of a step. `made`: the rows of the objects that it finds; None: it has a result a row.

    `ran`: slot of the flags of the rows that have a result of their own. `most`: rows of one request for the model.
    `wanted`: the outputs that are read, known when all steps are compiled.
    """

    step: ModelStep
    manifest: ModelManifest
    needs: frozenset[int]
    rows: RowSet
    feeds: tuple[Feed, ...]
    when: Value | None
    made: RowSet | None
    ran: int
    most: int
    columns: dict[str, Column] = field(default_factory=dict)
    wanted: tuple[RequestedOutput, ...] = ()
    batched: bool = True

    @property
    def name(self) -> str:
        """Return the step's name."""
        return self.step.name

    def fits(self, manifest: ModelManifest) -> bool:
        """Return True if the step holds for another version of the model as well."""
        return manifest is self.manifest or _signature(manifest) == _signature(self.manifest)

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
    """Step that the gateway computes itself, without waiting."""

    name: str
    needs: frozenset[int]
    apply: Callable[[Values], None]


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Decoding of an input's images, as pixels."""

    name: str
    slot: int
    needs: frozenset[int] = frozenset()


Run = ModelRun | LocalRun | DecodeRun


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """Output as a tensor: its value, and the rows of which it has one list for each row of the request (None: one)."""

    spec: TensorSpec
    value: Value
    made: RowSet | None
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Compiled pipeline. `runs` come in an order in which each follows those that it `needs` (by index).

    `inputs`: slot of each input's column. `slots`: how many values a request has. `manifest`: what callers see. `followers`: of
    each run, those that need it.
    """

    pipeline: Pipeline
    manifest: ModelManifest
    root: RowSet
    inputs: tuple[tuple[PipelineInput, int], ...]
    runs: tuple[Run, ...]
    outputs: tuple[OutputColumn, ...]
    slots: int
    followers: tuple[tuple[int, ...], ...]

    @property
    def models(self) -> tuple[ModelRun, ...]:
        """Return the runs of models."""
        return tuple(run for run in self.runs if isinstance(run, ModelRun))

    def answers(self, values: Values, wanted: Sequence[str]) -> dict[str, Array]:
        """Return the outputs called `wanted`, in that order, with the request's rows first."""
        columns = {output.spec.name: output for output in self.outputs}
        arrays = {name: _as_tensor(columns[name], values, values[self.root.count]) for name in wanted if name != RESULT}
        if RESULT in wanted:
            arrays[RESULT] = _documents(self.outputs, values, values[self.root.count])
        return {name: arrays[name] for name in wanted}


Manifests = Callable[[str, str], ModelManifest]
"""Function that returns the manifest of a model's version. Raises RequestError if it does not serve."""
Gallery = Callable[[str], tuple[Array, tuple[str, ...]]]
"""Function that returns the vectors [n, d] and labels of a gallery's file. Raises ConfigurationError."""


def plan(pipeline: Pipeline, manifests: Manifests, gallery: Gallery, rows_of: Callable[[ModelManifest], int]) -> Plan:
    """Compile a pipeline. `rows_of` returns the most rows of one request for a model.

    Raises ConfigurationError with the step and its line if parts do not fit each other.
    """
    return _Planner(pipeline, manifests, gallery, rows_of).plan()


class _Planner:
    def __init__(
        self, pipeline: Pipeline, manifests: Manifests, gallery: Gallery, rows_of: Callable[[ModelManifest], int]
    ) -> None:
        self._pipeline, self._manifests, self._gallery, self._rows_of_model = pipeline, manifests, gallery, rows_of
        self._slots = 0
        self._root = RowSet("input", self._slot(), self._slot())
        self._runs = list[Run]()
        self._by_name = dict[str, int]()
        self._columns = dict[str, Callable[[str], Value | None]]()
        self._known = dict[str, Callable[[], list[str]]]()
        self._rows = dict[str, RowSet]()
        self._labels = dict[str, Sequence[str]]()
        self._inputs = dict[str, tuple[PipelineInput, int]]()
        self._bare = dict[str, Value]()
        self._pixels = set[str]()

    def plan(self) -> Plan:
        for each in self._pipeline.inputs:
            self._input(each)
        for step in self._pipeline.steps:
            try:
                self._step(step)
            except ExpressionError as error:
                raise self._error(step.name, str(error)) from None
        try:
            outputs = [
                column for name, output in self._pipeline.outputs.items() for column in self._output(name, output)
            ]
        except ExpressionError as error:
            raise ConfigurationError(str(error), file=self._pipeline.file, table="output") from None
        for run in self._runs:
            if isinstance(run, ModelRun):
                run.settle()
        unread = [run for run in self._runs if isinstance(run, DecodeRun) and run.name not in self._pixels]
        runs = tuple(LocalRun(run.name, run.needs, lambda _: None) if run in unread else run for run in self._runs)
        return Plan(
            self._pipeline,
            self._manifest(outputs),
            self._root,
            tuple(self._inputs.values()),
            runs,
            tuple(outputs),
            self._slots,
            tuple(tuple(n for n, run in enumerate(runs) if index in run.needs) for index in range(len(runs))),
        )

    # ---- names -------------------------------------------------------------------------------------------------------
    def _slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def _error(self, step: str, problem: str) -> ConfigurationError:
        place = next((n for n, each in enumerate(self._pipeline.steps) if each.name == step), 0)
        table = read_document(self._pipeline.text, self._pipeline.file).tables("step")[place]
        try:
            table.refuse("name", f"step '{step}': {problem}")
        except ConfigurationError as error:
            return error

    def _input(self, declared: PipelineInput) -> None:
        slot = self._slot()
        self._inputs[declared.name] = declared, slot
        if declared.kind == IMAGE:
            of_type = IMAGE_TYPE
            self._by_name[declared.name] = len(self._runs)
            self._runs.append(DecodeRun(declared.name, slot))
        elif declared.kind == TEXT:
            of_type = ColumnType(TEXT, (), Datatype.BYTES)
        else:
            is_flag = declared.datatype is Datatype.BOOL
            of_type = ColumnType(FLAG if is_flag else NUMBER, declared.shape, declared.datatype)
        self._bare[declared.name] = Value(of_type, self._root, lambda values: values[slot])

    def _scope(self, bare: Mapping[str, Value] | None = None) -> Scope:
        return Scope(
            columns=lambda step, name: self._columns[step](name) if step in self._columns else None,
            bare={**self._bare, **(bare or {})},
            rows=self._rows,
            labels=self._labels,
            known=lambda step: self._known[step]() if step in self._known else (),
        )

    def _compiled(self, expression: Expression, bare: Mapping[str, Value] | None = None) -> Value:
        for name in expression.names:
            if name in self._inputs and self._inputs[name][0].kind == IMAGE:
                self._pixels.add(name)
        return compiled(expression, self._scope(bare))

    def _needs(self, *expressions: Expression | None, steps: Sequence[str] = ()) -> frozenset[int]:
        named = [*steps]
        for each in filter(None, expressions):
            named += [step for step, _ in each.columns]
            named += each.names
        return frozenset(self._by_name[name] for name in named if name in self._by_name)

    def _add(self, run: Run, columns: Callable[[str], Value | None], known: Callable[[], list[str]]) -> None:
        self._by_name[run.name] = len(self._runs)
        self._runs.append(run)
        self._columns[run.name], self._known[run.name] = columns, known

    # ---- steps -------------------------------------------------------------------------------------------------------
    def _step(self, step: Step) -> None:
        if isinstance(step, ModelStep):
            self._model(step)
        elif isinstance(step, RuleStep):
            self._rule(step)
        elif isinstance(step, SelectStep):
            self._select(step)
        elif isinstance(step, MergeStep):
            self._merge(step)
        elif isinstance(step, TileStep):
            self._tile(step)
        else:
            self._match(step)

    def _model(self, step: ModelStep) -> None:
        manifest = self._manifests(step.model, step.version)
        taken = {spec.name: spec for spec in manifest.inputs}
        required = [spec.name for spec in manifest.inputs if spec.default is None]
        inputs = dict(step.inputs)
        if "" in inputs:
            if len(required) != 1 and len(taken) != 1:
                words = (
                    f"model '{step.model}' has the inputs {', '.join(taken)}; write inputs = {{ {required[0]} = … }}"
                )
                raise self._error(step.name, words)
            inputs = {(required or list(taken))[0]: inputs[""]}
        if missing := [name for name in required if name not in inputs]:
            raise self._error(step.name, f"model '{step.model}' needs the input '{missing[0]}'")
        feeds = tuple(self._feed(step, taken.get(name), name, each, manifest) for name, each in inputs.items())
        when = None if step.when is None else self._compiled(step.when)
        if when is not None and (when.type.kind != FLAG or when.type.shape):
            raise ExpressionError(
                step.when.text if step.when else "", f"is {when.type.words}; 'when' needs a comparison"
            )
        rows = common_rows(step.name, [feed.value for feed in feeds] + ([when] if when else [])) or self._root
        feeds = tuple(Feed(feed.spec, lifted(feed.value, rows)) for feed in feeds)
        finds = _finds_objects(manifest)
        made = RowSet(step.name, self._slot(), self._slot(), rows, rows) if finds else None
        if made is not None and step.otherwise:
            raise self._error(step.name, "finds objects: rows that 'when' skips have none, and need no 'else'")
        expressions = [*step.inputs.values(), step.when]
        needs = self._needs(*expressions, steps=[step.otherwise] if step.otherwise else [])
        when = when and lifted(when, rows)
        run = ModelRun(step, manifest, needs, rows, feeds, when, made, self._slot(), self._rows_of_model(manifest))
        if made is not None:
            self._rows[step.name] = made
        self._labels[step.name] = manifest.labels
        for key in step.fallback:
            if self._model_column(run, key) is None:
                raise self._error(step.name, f"fallback names '{key}', which is no column of the step")
        self._add(run, lambda name: self._model_column(run, name), lambda: _column_names(manifest))

    def _feed(
        self, step: ModelStep, spec: TensorSpec | None, name: str, expression: Expression, manifest: ModelManifest
    ) -> Feed:
        if spec is None:
            known = ", ".join(each.name for each in manifest.inputs)
            raise self._error(step.name, f"model '{step.model}' has no input '{name}'; it has {known}")
        if spec.preprocess is not None and not spec.preprocess.frame and expression.text in self._inputs:
            declared, _ = self._inputs[expression.text]
            if declared.kind == IMAGE:
                return Feed(spec, self._bare[declared.name])
        value = self._compiled(expression)
        if value.type.kind == IMAGE:
            if spec.preprocess is None or spec.preprocess.frame:
                words = f"input '{name}' of model '{step.model}' declares no way from an image to its values"
                raise self._error(step.name, f"{words}; add [input.preprocess] to its manifest")
            return Feed(spec, value)
        inner = spec.shape[1:] if manifest.batched else spec.shape
        given = value.type.shape
        wanted = TEXT if spec.datatype is Datatype.BYTES else FLAG if spec.datatype is Datatype.BOOL else NUMBER
        if value.type.kind != wanted:
            raise self._error(
                step.name, f"input '{name}' of model '{step.model}' takes {wanted}, not {value.type.words}"
            )
        if not _may_fit(given, inner) and _elements(inner) != 1:
            words = f"input '{name}' of model '{step.model}' takes rows of the shape {list(inner)}, not {list(given)}"
            raise self._error(step.name, words)
        return Feed(spec, value)

    def _model_column(self, run: ModelRun, name: str) -> Value | None:
        """Return a column of a model's step; make it when it is first read. None if there is none of that name."""
        if (column := run.columns.get(name)) is None:
            made = _column_of(run.manifest, name)
            if made is None:
                return None
            output, of_type, make = made
            other = None
            if run.step.otherwise:
                other = self._columns[run.step.otherwise](name)
                if other is None or (other.type.kind, other.type.shape) != (of_type.kind, of_type.shape):
                    words = f"'{run.step.otherwise}' has no column '{name}' of the same type ({of_type.words})"
                    raise self._error(run.name, f"the step named by else, {words}")
                other = lifted(other, run.rows)
            fallback = run.step.fallback.get(name) if run.step.fallback else None
            if run.step.fallback and fallback is None:
                raise self._error(run.name, f"fallback lacks '{name}', which is read below; add it")
            has_rows = run.manifest.batched or output in run.manifest.answered
            constant = fallback.encode() if isinstance(fallback, str) else fallback
            column = Column(self._slot(), of_type, output, make, has_rows, other, constant)
            run.columns[name] = column
        slot, ran = column.slot, run.ran
        rows, of_type = run.made or run.rows, column.type
        if run.when is None or run.made is not None or column.other is not None:
            return Value(of_type, rows, lambda values: values[slot])
        optional = ColumnType(of_type.kind, of_type.shape, of_type.datatype, optional=True)
        return Value(optional, rows, lambda values: values[slot], lambda values: values[ran])

    def _rule(self, step: RuleStep) -> None:
        found = {name: self._compiled(each) for name, each in step.columns.items()}
        columns, fills = dict[str, Value](), list[tuple[int, Value, RowSet]]()
        for name, value in found.items():
            slot, rows = self._slot(), value.rows or self._root
            if value.type.kind == IMAGE:
                raise self._error(step.name, f"'{name}' is an image; name it where a model takes it")
            columns[name] = Value(value.type, rows, lambda values, slot=slot: values[slot])  # type: ignore[misc]
            fills.append((slot, value, rows))

        def apply(values: Values) -> None:
            for slot, value, rows in fills:
                column = spread(value, values, values[rows.count])
                if value.divides and not np.isfinite(column).all():
                    raise StepError("a rule divides by zero, or its result is no number")
                values[slot] = column

        self._add(LocalRun(step.name, self._needs(*step.columns.values()), apply), columns.get, lambda: list(columns))

    def _select(self, step: SelectStep) -> None:
        source, source_columns = self._rows_of(step.name, step.source), self._known[step.source]()
        bare = {name: value for name in source_columns if (value := self._columns[step.source](name))}
        where = None if step.where is None else lifted(self._compiled(step.where, bare), source)
        by = None if step.by is None else lifted(self._compiled(step.by, bare), source)
        if where is not None and (where.type.kind != FLAG or where.type.shape):
            raise self._error(step.name, f"'where' is {where.type.words}; it must be a comparison")
        if by is not None and (by.type.kind != NUMBER or by.type.shape):
            raise self._error(step.name, f"'by' is {by.type.words}; it must be a number")
        if any(value is not None and value.rows not in {None, source} for value in (where, by)):
            raise self._error(step.name, f"'where' and 'by' may read rows of '{step.source}' and those above it")
        rows = RowSet(step.name, self._slot(), self._slot(), source, source.owner)
        owner = source.owner or self._root

        def apply(values: Values) -> None:
            count = values[source.count]
            kept = np.arange(count) if where is None else np.flatnonzero(spread(where, values, count))
            if by is not None:
                order = np.asarray(spread(by, values, count), np.float64)[kept]
                kept = kept[np.argsort(-np.nan_to_num(order, nan=-np.inf), kind="stable")]
            if step.top:
                kept = kept[_place_in_group(owner_of(source, owner, values)[kept]) < step.top]
            values[rows.index], values[rows.count] = kept, len(kept)

        needs = self._needs(step.where, step.by, steps=[step.source])
        self._rows[step.name] = rows
        self._labels[step.name] = self._labels.get(step.source, ())
        self._add(
            LocalRun(step.name, needs, apply),
            lambda name: (value := self._columns[step.source](name)) and lifted(value, rows),
            self._known[step.source],
        )

    def _merge(self, step: MergeStep) -> None:
        sources = [self._rows_of(step.name, name) for name in step.sources]
        owners = [_outermost(rows) for rows in sources]
        if len(set(map(id, owners))) > 1:
            raise self._error(step.name, "merges rows that were not made of the same rows")
        names = [name for name in self._known[step.sources[0]]() if all(name in self._known[s]() for s in step.sources)]
        rows = RowSet(step.name, self._slot(), self._slot(), owners[0], owners[0])
        columns = dict[str, Value]()
        fills = list[tuple[int, list[Value]]]()

        def column(name: str) -> Value | None:
            if name not in names:
                return None
            if name not in columns:
                parts = [self._columns[source](name) for source in step.sources]
                values = [part for part in parts if part is not None]
                if len({(value.type.kind, value.type.shape) for value in values}) != 1 or values[0].type.kind == IMAGE:
                    return None
                slot = self._slot()
                fills.append((slot, values))
                columns[name] = Value(values[0].type, rows, lambda values: values[slot])
            return columns[name]

        boxes, scores, labels = (column(name) for name in ("box", "score", "label"))
        if step.nms_iou and not (boxes and scores and labels):
            raise self._error(step.name, "nms_iou needs the columns box, score and label of each step")

        def apply(values: Values) -> None:
            owned = np.concatenate([owner_of(each, owners[0], values) for each in sources])
            order = np.argsort(owned, kind="stable")
            for slot, parts in fills:
                values[slot] = np.concatenate([part.of(values) for part in parts])[order]
            owned = owned[order]
            if step.nms_iou and boxes and scores and labels:
                kept = _unsuppressed(boxes.of(values), scores.of(values), labels.of(values), owned, step.nms_iou)
                owned = owned[kept]
                for slot, _ in fills:
                    values[slot] = values[slot][kept]
            values[rows.index], values[rows.count] = owned, len(owned)

        self._rows[step.name] = rows
        self._add(LocalRun(step.name, self._needs(steps=step.sources), apply), column, lambda: names)

    def _tile(self, step: TileStep) -> None:
        image = self._compiled(step.image)
        if image.type.kind != IMAGE or image.rows is None:
            raise self._error(step.name, f"'tile' is {image.type.words}; it must be an image")
        above = image.rows
        rows, slot = RowSet(step.name, self._slot(), self._slot(), above, above), self._slot()

        def apply(values: Values) -> None:
            made = [tiles(view, step.size, step.overlap) for view in image.of(values)]
            if any(len(each) > ROWS_LIMIT for each in made):
                raise StepError(f"the image has more than {ROWS_LIMIT} tiles; make them larger")
            column = np.empty(sum(map(len, made)), object)
            column[:] = [view for each in made for view in each]
            values[slot] = column
            values[rows.index] = np.repeat(np.arange(len(made)), [len(each) for each in made])
            values[rows.count] = len(column)

        columns = {
            "image": Value(IMAGE_TYPE, rows, lambda values: values[slot]),
            "box": Value(
                ColumnType(NUMBER, (4,), Datatype.FP32),
                rows,
                lambda values: np.array([view.box for view in values[slot]], np.float32).reshape(-1, 4),
            ),
        }
        self._rows[step.name] = rows
        self._add(LocalRun(step.name, self._needs(step.image), apply), columns.get, lambda: list(columns))

    def _match(self, step: MatchStep) -> None:
        value = self._compiled(step.of)
        vectors, names = self._gallery(step.gallery)
        if value.type.kind != NUMBER or len(value.type.shape) != 1 or value.type.shape[0] not in {-1, vectors.shape[1]}:
            words = f"is {value.type.words}, but the vectors of {step.gallery} have {vectors.shape[1]} numbers"
            raise self._error(step.name, f"'of' {words}")
        rows, label, score = value.rows or self._root, self._slot(), self._slot()
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        unit = (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
        texts = np.empty(len(names) + 1, object)
        texts[:] = [*(name.encode() for name in names), step.unknown.encode()]

        def apply(values: Values) -> None:
            asked = np.asarray(spread(value, values, values[rows.count]), np.float32)
            norms = np.linalg.norm(asked, axis=1, keepdims=True)
            if len(asked) and asked.shape[1] != unit.shape[1]:
                raise StepError(f"got vectors of {asked.shape[1]} numbers, the gallery's have {unit.shape[1]}")
            alike = (asked / np.where(norms > 0, norms, 1.0)) @ unit.T
            best = np.argmax(alike, axis=1) if len(unit) else np.zeros(len(asked), int)
            values[score] = alike[np.arange(len(asked)), best] if len(unit) else np.zeros(len(asked), np.float32)
            values[label] = texts[np.where(values[score] >= step.least, best, len(names))]

        columns = {
            "label": Value(ColumnType(TEXT, (), Datatype.BYTES), rows, lambda values: values[label]),
            "score": Value(ColumnType(NUMBER, (), Datatype.FP32), rows, lambda values: values[score]),
        }
        self._add(LocalRun(step.name, self._needs(step.of), apply), columns.get, lambda: list(columns))

    def _rows_of(self, step: str, name: str) -> RowSet:
        if (rows := self._rows.get(name)) is None:
            raise self._error(step, f"'{name}' has no rows of its own: it is no detector, tile, select or merge")
        return rows

    # ---- what callers see --------------------------------------------------------------------------------------------
    def _output(self, name: str, output: Output) -> list[OutputColumn]:
        if isinstance(output, Expression):
            value = self._compiled_optional(output)
            return [self._output_column(name, (name,), value, output)]
        found = {key: self._compiled_optional(each) for key, each in output.items()}
        rows = common_rows(name, list(found.values())) or self._root
        return [
            self._output_column(f"{name}.{key}", (name, key), lifted(value, rows), output[key])
            for key, value in found.items()
        ]

    def _compiled_optional(self, expression: Expression) -> Value:
        return compiled(expression, self._scope(), optional=True)

    def _output_column(self, name: str, key: tuple[str, ...], value: Value, expression: Expression) -> OutputColumn:
        if value.type.kind == IMAGE:
            raise ExpressionError(expression.text, "is an image; outputs are numbers, texts and flags")
        made = value.rows if value.rows is not None and value.rows.owner is not None else None
        datatype = {TEXT: Datatype.BYTES, FLAG: Datatype.BOOL}.get(value.type.kind, value.type.datatype)
        shape = (ROWS, *((-1,) if made else ()), *value.type.shape)
        return OutputColumn(TensorSpec(name, datatype, shape), value, made, key)

    def _manifest(self, outputs: Sequence[OutputColumn]) -> ModelManifest:
        specs = (TensorSpec(RESULT, Datatype.BYTES, (ROWS,)), *(output.spec for output in outputs))
        inputs = tuple(TensorSpec(each.name, each.datatype, (ROWS, *each.shape)) for each, _ in self._inputs.values())
        return ModelManifest(
            self._pipeline.name,
            self._pipeline.version,
            inputs,
            specs,
            (),
            answered=tuple(spec.name for spec in specs),
        )


class StepError(Exception):
    """Failure of a step for the data of one request."""


def owner_of(rows: RowSet, owner: RowSet, values: Values) -> Array:
    """Return the place of each row's owner among the rows of `owner`."""
    places: Array | None = None
    for each in rows.lineage():
        if each is owner:
            break
        index = values[each.index]
        places = index if places is None else index[places]
    return np.arange(values[rows.count]) if places is None else places


def _outermost(rows: RowSet) -> RowSet:
    *_, last = rows.lineage()
    return last


def _place_in_group(groups: Array) -> Array:
    """Return how many earlier elements are in the same group, for each."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    begins = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(groups) else np.zeros(0, int)
    places = np.empty(len(groups), int)
    places[order] = np.arange(len(groups)) - np.repeat(begins, np.diff(np.r_[begins, len(groups)]))
    return places


def _unsuppressed(boxes: Array, scores: Array, labels: Array, groups: Array, iou: float) -> Array:
    """Return the places of the boxes that no better one of the same group and label overlaps by more than `iou`."""
    _, kinds = np.unique(labels, return_inverse=True)
    kinds = groups * (kinds.max(initial=0) + 1) + kinds
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
    overlaps = within_classes(iou_overlaps(boxes[order], iou), kinds[order])
    return np.sort(order[suppress(len(order), overlaps, len(order))])


def _signature(manifest: ModelManifest) -> tuple[object, ...]:
    return (
        manifest.inputs,
        manifest.outputs,
        manifest.labels,
        manifest.answered,
        manifest.batched,
        manifest.max_batch_rows,
    )


def _finds_objects(manifest: ModelManifest) -> bool:
    results = {name.removeprefix(PREFIX) for name in manifest.answered}
    return {"boxes", "scores", "classes"} <= results


def _column_names(manifest: ModelManifest) -> list[str]:
    finds = _finds_objects(manifest)
    own = [spec.name.removeprefix(PREFIX) for spec in manifest.outputs]
    if not finds:
        return own
    return [name for name, (output, _) in OBJECTS.items() if output in own] + (
        ["keypoints"] if "keypoints" in own else []
    )


def _column_of(manifest: ModelManifest, name: str) -> tuple[str, ColumnType, Callable[[Array], Array]] | None:
    """Return the output of a column, its type, and how the output's rows become its values; None if there is none."""
    specs = {
        spec.name.removeprefix(PREFIX) if spec.name in manifest.answered else spec.name: spec
        for spec in manifest.outputs
    }
    if _finds_objects(manifest):
        known = OBJECTS.get(name)
        spec = specs.get(known[0] if known else name)
        if spec is None or spec.shape[1:2] != (-1,):
            return None
        of_type = known[1] if known else ColumnType(NUMBER, spec.shape[2:], spec.datatype)
        labels = manifest.labels
        return spec.name, of_type, (lambda rows: named(rows, labels)) if name == "label" else _same
    spec = specs.get(name)
    if spec is None:
        return None
    has_rows = manifest.batched or spec.name in manifest.answered
    inner = spec.shape[1:] if has_rows else spec.shape
    kind = TEXT if spec.datatype is Datatype.BYTES else FLAG if spec.datatype is Datatype.BOOL else NUMBER
    if spec.name in manifest.answered and inner == (-1,) and name in {"class", "score", "label"}:  # best first
        return spec.name, ColumnType(kind, (), spec.datatype), _best_text if kind == TEXT else _best
    if inner == (1,):
        return spec.name, ColumnType(kind, (), spec.datatype), lambda rows: rows.reshape(-1)
    return spec.name, ColumnType(kind, inner, spec.datatype), _same


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


def _may_fit(given: Sequence[int], wanted: Sequence[int]) -> bool:
    pairs = zip(given, wanted, strict=False)
    return len(given) == len(wanted) and all(a == b or -1 in {a, b} for a, b in pairs)


def _elements(shape: Sequence[int]) -> int:
    return int(np.prod(shape)) if all(size > 0 for size in shape) else 0


def _as_tensor(output: OutputColumn, values: Values, count: int) -> Array:
    """Return an output with the request's rows first. Lists of different lengths are filled up with ABSENT or 0."""
    value, datatype = output.value, output.spec.datatype
    rows = output.made
    column = spread(value, values, values[rows.count] if rows else count)
    if value.present is not None:
        there = value.present(values)
        if not np.all(there):
            column = np.array(column)
            column[~np.asarray(there)] = _filler(datatype)
    if rows is None:
        return column if datatype is Datatype.BYTES else np.ascontiguousarray(column, datatype.dtype)
    owned = owner_of(rows, _outermost(rows), values)
    places = _place_in_group(owned)
    whole = np.full((count, int(places.max(initial=-1)) + 1, *column.shape[1:]), _filler(datatype), datatype.dtype)
    whole[owned, places] = column
    return whole


def _filler(datatype: Datatype) -> Any:
    return b"" if datatype is Datatype.BYTES else ABSENT if datatype.dtype.kind == "i" else 0


def _documents(outputs: Sequence[OutputColumn], values: Values, count: int) -> Array:
    """Return one JSON object for each row of the request: its outputs by name. What is absent or no number is null."""
    rows: list[dict[str, Any]] = [{} for _ in range(count)]
    for output in outputs:
        name, made, value = output.key[0], output.made, output.value
        listed = _plain(spread(value, values, values[made.count] if made else count))
        if value.present is not None:
            pairs = zip(listed, value.present(values), strict=True)
            listed = [entry if there else None for entry, there in pairs]
        nested = output.key[1] if len(output.key) > 1 else ""
        if made is None:
            for row, entry in zip(rows, listed, strict=True):
                _put(row, name, nested, entry)
            continue
        lists = [list[Any]() for _ in range(count)]
        for owner, entry in zip(owner_of(made, _outermost(made), values).tolist(), listed, strict=True):
            lists[owner].append(entry)
        for row, each in zip(rows, lists, strict=True):
            if not nested:
                row[name] = each
                continue
            for thing, entry in zip(row.setdefault(name, [{} for _ in each]), each, strict=True):
                thing[nested] = entry
    found = np.empty(count, object)
    found[:] = [json.dumps(row, ensure_ascii=False, allow_nan=False).encode() for row in rows]
    return found


def _put(row: dict[str, Any], name: str, nested: str, entry: Any) -> None:
    if nested:
        row.setdefault(name, {})[nested] = entry
    else:
        row[name] = entry


def _plain(column: Array) -> list[Any]:
    """Return a column as values that JSON can carry."""
    if column.dtype == object:
        return [text.decode(errors="replace") for text in column]
    if column.dtype.kind != "f":
        plain: list[Any] = column.tolist()
        return plain
    rounded = np.round(np.asarray(column, np.float64), DIGITS) + 0.0  # + 0.0: no "-0.0" in JSON
    if np.isfinite(rounded).all():
        finite: list[Any] = rounded.tolist()
        return finite
    return _without_nan(rounded.tolist())


def _without_nan(values: list[Any]) -> list[Any]:
    return [
        _without_nan(value) if isinstance(value, list) else value if math.isfinite(value) else None for value in values
    ]
