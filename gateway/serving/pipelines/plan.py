"""Plan of a pipeline: its steps compiled against the manifests of its models, and what callers see of it. Pure.

Types, shapes, labels and names are checked here, before a request comes. The plan holds as long as the manifests do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.expressions import Expression, ExpressionError
from gateway.common.domain.manifest import CORRID, ROWS, ModelManifest, TensorSpec
from gateway.common.domain.pipeline import (
    ASKS,
    DURATIONS,
    REQUEST_ROWS_LIMIT,
    ROWS_LIMIT,
    STATE,
    TOTALS,
    CountStep,
    MatchStep,
    MergeStep,
    ModelStep,
    Output,
    Pipeline,
    PipelineInput,
    PythonStep,
    RuleStep,
    SelectStep,
    Step,
    TileStep,
    TrackStep,
    WindowStep,
    keeps_state,
)
from gateway.common.domain.tensor import Array, Datatype
from gateway.common.domain.text_model import is_generative
from gateway.serving.pipelines.columns import (
    FLAG,
    IMAGE,
    IMAGE_TYPE,
    NUMBER,
    TEXT,
    ColumnType,
    ColumnValue,
    RowSet,
    StepError,
    Values,
    common_rows,
    lifted,
    owner_of,
    place_in_group,
    placed,
    spread,
)
from gateway.serving.pipelines.functions import compiled
from gateway.serving.pipelines.lists import merged, nearest, unit_vectors
from gateway.serving.pipelines.outputs import OutputColumn, as_tensor, documents, work_of
from gateway.serving.pipelines.planner import Gallery, Manifests, Planner
from gateway.serving.pipelines.questions import answer_column, answer_names, asked
from gateway.serving.pipelines.runs import (
    Column,
    DecodeRun,
    Feed,
    LocalRun,
    ModelRun,
    Run,
    column_names,
    column_of,
    decode_next_to_pixels,
    elements,
    finds_objects,
    may_fit,
    row_shape,
)
from gateway.serving.pipelines.slices import Slices, whole_of
from gateway.serving.tasks.interpreter import RESULT
from gateway.serving.tasks.views import View, tiles


@dataclass(frozen=True, slots=True)
class Plan:
    """Compiled pipeline. `runs` come in an order in which each follows those that it `needs` (by index).

    `inputs`: slot of each input's column. `slots`: how many values a request has. `manifest`: what callers see.
    `followers`: of each run, those that need it. `states`: the runs with state, which is in the slot `turn`.
    """

    pipeline: Pipeline
    manifest: ModelManifest
    root: RowSet
    inputs: tuple[tuple[PipelineInput, int], ...]
    runs: tuple[Run, ...]
    outputs: tuple[OutputColumn, ...]
    slots: int
    followers: tuple[tuple[int, ...], ...]
    states: tuple[int, ...] = ()
    turn: int = -1

    @property
    def models(self) -> tuple[ModelRun, ...]:
        """Return the runs of models."""
        return tuple(run for run in self.runs if isinstance(run, ModelRun))

    def is_long(self, values: Values, wanted: Sequence[str]) -> bool:
        """Return True if the outputs called `wanted` take too long for the event loop: documents 50 times as long."""
        if RESULT in wanted:
            return work_of(self.outputs, self.root, values) > LOOP_VALUES
        outputs = [output for output in self.outputs if output.spec.name in wanted]
        return work_of(outputs, self.root, values) > 50 * LOOP_VALUES

    def answers(self, values: Values, wanted: Sequence[str]) -> dict[str, Array]:
        """Return the outputs called `wanted`, in that order, with the request's rows first."""
        columns = {output.spec.name: output for output in self.outputs}
        arrays = {name: as_tensor(columns[name], self.root, values) for name in wanted if name != RESULT}
        if RESULT in wanted:
            arrays[RESULT] = documents(self.outputs, self.root, values)
        return {name: arrays[name] for name in wanted}


LOOP_WORK = 1_000_000
"""Most multiplications of a comparison with a gallery on the event loop: about 0.1 ms."""
LOOP_VALUES = 2_000
"""Most values of a request's outputs, or rows of a step, on the event loop: about 1 ms."""
LOOP_BOXES = 100
"""Most boxes that are compared with each other on the event loop."""


def plan(pipeline: Pipeline, manifests: Manifests, gallery: Gallery) -> Plan:
    """Compile a pipeline. Raises ConfigurationError with the step and its line if parts do not fit each other."""
    return _Planner(pipeline, manifests, gallery).plan()


class _Planner(Planner):
    def plan(self) -> Plan:
        for each in self._pipeline.inputs:
            self._input(each)
        for step in self._pipeline.steps:
            try:
                self._step(step)
            except ExpressionError as error:
                raise self._error(step.name, str(error)) from None
        if self._pipeline.state is not None and not self._states:
            words = "is for steps with state; add one (track, window, a model with sequences), or remove it"
            raise ConfigurationError(words, file=self._pipeline.file, table="state")
        try:
            outputs = [
                column for name, output in self._pipeline.outputs.items() for column in self._output(name, output)
            ]
        except ExpressionError as error:
            raise ConfigurationError(str(error), file=self._pipeline.file, table="output") from None
        for run in self._runs:
            if isinstance(run, ModelRun):
                run.settle()
        decode_next_to_pixels(self._seen, self._pixels)
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
            tuple(self._states),
            self._turn,
        )

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
        elif isinstance(step, TrackStep):
            self._track(step)
        elif isinstance(step, CountStep):
            self._count(step)
        elif isinstance(step, WindowStep):
            self._window(step)
        else:
            self._match(step)

    def _model(self, step: ModelStep) -> None:
        manifest = self._python(step) if isinstance(step, PythonStep) else self._stateless(step)
        taken = {spec.name: spec for spec in manifest.inputs}
        required = [spec.name for spec in manifest.inputs if spec.default is None]
        inputs = dict(step.inputs)
        if "" in inputs:
            if len(required) != 1 and len(taken) != 1:
                words = f"model '{step.model}' has the inputs {', '.join(taken)}"
                raise self._error(step.name, f"{words}; write inputs = {{ {next(iter(taken), '')} = … }}")
            inputs = {(required or list(taken))[0]: inputs[""]}
        if missing := [name for name in required if name not in inputs]:
            raise self._error(step.name, f"model '{step.model}' needs the input '{missing[0]}'")
        feeds = tuple(self._feed(step, taken.get(name), name, each, manifest) for name, each in inputs.items())
        self._seen.append([inputs[feed.spec.name].text for feed in feeds if feed.shows])
        when = None if step.when is None else self._compiled(step.when)
        if when is not None and (when.type.kind != FLAG or when.type.shape):
            raise ExpressionError(
                step.when.text if step.when else "", f"is {when.type.words}; 'when' needs a comparison"
            )
        rows = common_rows(step.name, [feed.value for feed in feeds] + ([when] if when else [])) or self._root
        feeds = tuple(Feed(feed.spec, lifted(feed.value, rows), feed.key and (rows, feed.key)) for feed in feeds)
        finds = finds_objects(manifest)
        made = RowSet(step.name, self._slot(), self._slot(), rows, rows) if finds else None
        if made is not None and (step.otherwise or step.fallback):
            words = "finds objects: rows that 'when' skips have none, and need no 'else'; fallback = {} means none"
            raise self._error(step.name, words)
        if step.otherwise and step.otherwise not in self._columns:
            raise self._error(step.name, f"else names '{step.otherwise}', which is no step")
        expressions = [*step.inputs.values(), step.when]
        needs = self._needs(*expressions, steps=[step.otherwise] if step.otherwise else [])
        when = when and lifted(when, rows)
        run = ModelRun(step, manifest, needs, rows, feeds, when, made, self._slot())
        self._with_state(step, manifest, rows)
        if made is not None:
            self._rows[step.name] = made
        self._labels[step.name] = manifest.labels
        for key in step.fallback or ():
            if self._model_column(run, key) is None:
                raise self._error(step.name, f"fallback names '{key}', which is no column of the step")
        known = column_names(manifest) if step.question is None else answer_names(step.question)
        self._add(run, lambda name: self._model_column(run, name), lambda: known)

    def _with_state(self, step: ModelStep, manifest: ModelManifest, rows: RowSet) -> None:
        """Note that the next run has state, if its model has sequences, or its code gets streams."""
        if isinstance(step, PythonStep) and step.stream:
            self._turn_slot()
        if (sequence := manifest.sequence) is None:
            return
        self._check_successive(step.name, rows)
        self._turn_slot()
        for control in sequence.controls:
            if control.kind == CORRID and sequence.specs[control.input].datatype is not Datatype.BYTES:
                words = f"its model takes the sequence_id as a number, '{control.input}', and that of a step is a text"
                raise self._error(step.name, words)

    def _stateless(self, step: ModelStep) -> ModelManifest:
        """Return the manifest of a step's model.

        Raises ConfigurationError for a pipeline with state, and for a question to what is no language model.
        """
        manifest = self._manifests(step.model, step.version)
        if keeps_state(manifest) and manifest.sequence is None:
            raise self._error(step.name, f"pipeline '{step.model}' has steps with state; write its steps into this one")
        if step.question is not None and not is_generative(manifest):
            raise self._error(step.name, f"model '{step.model}' is no language model; write 'of' in place of 'ask'")
        return manifest

    def _feed(
        self, step: ModelStep, spec: TensorSpec | None, name: str, expression: Expression, manifest: ModelManifest
    ) -> Feed:
        if spec is None:
            known = ", ".join(each.name for each in manifest.inputs)
            raise self._error(step.name, f"model '{step.model}' has no input '{name}'; it has {known}")
        key = expression.text, spec.preprocess, spec.layout, spec.datatype
        is_encoded = spec.preprocess is not None and not (spec.preprocess.frame or isinstance(step, PythonStep))
        if is_encoded and expression.text in self._inputs:
            declared, _ = self._inputs[expression.text]
            if declared.kind == IMAGE:
                return Feed(spec, self._bare[declared.name], key)
        value = self._compiled(expression)
        if value.type.kind == IMAGE:
            if spec.preprocess is None or spec.preprocess.frame:
                if not manifest.variants:
                    words = f"'{step.model}' is a pipeline, and a step gives images to models only"
                    raise self._error(step.name, f"{words}; write its steps into this pipeline")
                words = f"input '{name}' of model '{step.model}' declares no way from an image to its values"
                raise self._error(step.name, f"{words}; add [input.preprocess] to its manifest")
            return Feed(spec, value, key)
        inner = row_shape(spec, has_rows=manifest.batched)
        given = value.type.shape
        wanted = TEXT if spec.datatype is Datatype.BYTES else FLAG if spec.datatype is Datatype.BOOL else NUMBER
        if value.type.kind != wanted:
            raise self._error(
                step.name, f"input '{name}' of model '{step.model}' takes {wanted}, not {value.type.words}"
            )
        is_fitting = isinstance(step, PythonStep) or may_fit(given, inner)
        is_alike = elements(inner) > 0 and [size for size in given if size != 1] == [
            size for size in inner if size != 1
        ]
        if not is_fitting and not is_alike:
            words = f"input '{name}' of model '{step.model}' takes rows of the shape {list(inner)}, not {list(given)}"
            raise self._error(step.name, words)
        if (question := step.question) is not None:
            return Feed(spec, replace(value, of=lambda values: asked(question, value.of(values))))
        return Feed(spec, value)

    def _model_column(self, run: ModelRun, name: str) -> ColumnValue | None:
        """Return a column of a model's step; make it when it is first read. None if there is none of that name."""
        if (column := run.columns.get(name)) is None:
            question = run.step.question
            made = column_of(run.manifest, name) if question is None else answer_column(question, name)
            if made is None:
                return None
            output, of_type, make = made
            other = self._other(run, name, of_type) if run.step.otherwise else None
            fallback = self._fallback(run, name, of_type) if made is not None and run.made is None else None
            has_rows = run.manifest.batched or output in run.manifest.answered
            column = Column(self._slot(), of_type, output, make, has_rows, other, fallback)
            run.columns[name] = column
        slot, ran = column.slot, run.ran
        rows, of_type = run.made or run.rows, column.type
        if run.when is None or run.made is not None or column.other is not None:
            return ColumnValue(of_type, rows, lambda values: values[slot])
        optional = ColumnType(of_type.kind, of_type.shape, of_type.datatype, optional=True)
        return ColumnValue(optional, rows, lambda values: values[slot], lambda values: values[ran])

    def _other(self, run: ModelRun, name: str, of_type: ColumnType) -> ColumnValue:
        """Return the values of rows that are skipped: those of the same column of the step that `else` names."""
        other, words = self._columns[run.step.otherwise](name), f"the step named by else, '{run.step.otherwise}',"
        if other is None or (other.type.kind, other.type.shape) != (of_type.kind, of_type.shape):
            raise self._error(run.name, f"{words} has no column '{name}' of the same type ({of_type.words})")
        if not np.can_cast(other.type.datatype.dtype, of_type.datatype.dtype, "same_kind"):
            names = f"{other.type.datatype.label} values, which {of_type.datatype.label} does not hold"
            raise self._error(run.name, f"{words} has {names}, in '{name}'")
        if other.type.optional:
            raise self._error(run.name, f"{words} skips rows itself; give it an 'else' as well")
        return self._at(other, run.rows, run.name, words)

    def _fallback(self, run: ModelRun, name: str, of_type: ColumnType) -> float | bytes | bool | None:
        """Return the value of a column when the run fails, None if the request fails then."""
        if run.step.fallback is None:
            return None
        value = run.step.fallback.get(name)
        if value is None:
            raise self._error(run.name, f"fallback lacks '{name}', which is read below; add it")
        kind = FLAG if isinstance(value, bool) else TEXT if isinstance(value, str) else NUMBER
        dtype = of_type.datatype.dtype
        if isinstance(value, (int, float)) and dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            is_held = value == int(value) and bounds.min <= value <= bounds.max if math.isfinite(value) else False
        else:
            is_held = True
        if kind != of_type.kind or not is_held:
            raise self._error(run.name, f"fallback has {value!r:.80} for '{name}', which is {of_type.words}")
        return value.encode() if isinstance(value, str) else value

    def _rule(self, step: RuleStep) -> None:
        found = {name: self._compiled(each) for name, each in step.columns.items()}
        columns, fills = dict[str, ColumnValue](), list[tuple[int, ColumnValue, RowSet]]()
        for name, value in found.items():
            slot, rows = self._slot(), value.rows or self._root
            if value.type.kind == IMAGE:
                raise self._error(step.name, f"'{name}' is an image; name it where a model takes it")
            columns[name] = ColumnValue(value.type, rows, lambda values, slot=slot: values[slot])  # type: ignore[misc]
            fills.append((slot, value, rows))

        def apply(values: Values) -> None:
            for slot, value, rows in fills:
                column = spread(value, values, values[rows.count])
                if value.divides and value.type.kind == NUMBER and not np.isfinite(column).all():
                    raise StepError("a rule divides by zero, or its result is no number")
                values[slot] = column

        named = {name for each in step.columns.values() for name in each.names}
        read = [slot for each, slot in self._inputs.values() if each.name in named and each.kind != IMAGE]

        def is_long(values: Values) -> bool:
            many = any(values[rows.count] > LOOP_VALUES for _, _, rows in fills)
            return many or any(_size(values[slot]) > 50 * LOOP_VALUES for slot in read)

        run = LocalRun(step.name, self._needs(*step.columns.values()), apply, is_long)
        self._add(run, columns.get, lambda: list(columns))

    def _select(self, step: SelectStep) -> None:
        source, source_columns = self._rows_of(step.name, step.source), self._known[step.source]()
        named = {name for each in (step.where, step.by) if each is not None for name in each.names}
        bare = {name: value for name in source_columns if name in named and (value := self._columns[step.source](name))}
        scope = self._scope(bare, source_columns)
        where, by = (
            None if each is None else self._at(compiled(each, scope), source, step.name, f"'{key}'")
            for key, each in (("where", step.where), ("by", step.by))
        )
        if where is not None and (where.type.kind != FLAG or where.type.shape):
            raise self._error(step.name, f"'where' is {where.type.words}; it must be a comparison")
        if by is not None and (by.type.kind != NUMBER or by.type.shape):
            raise self._error(step.name, f"'by' is {by.type.words}; it must be a number")
        rows = RowSet(step.name, self._slot(), self._slot(), source, source.owner)
        owner = source.owner or self._root

        def apply(values: Values) -> None:
            count = values[source.count]
            kept = np.arange(count) if where is None else np.flatnonzero(spread(where, values, count))
            if by is not None:
                order = np.asarray(spread(by, values, count), np.float64)[kept]
                kept = kept[np.argsort(-np.nan_to_num(order, nan=-np.inf), kind="stable")]
            if step.top:
                kept = kept[place_in_group(owner_of(source, owner, values)[kept]) < step.top]
            values[rows.index], values[rows.count] = kept, len(kept)

        needs = self._needs(step.where, step.by, steps=[step.source])
        self._rows[step.name] = rows
        if source in self._successive:
            self._successive.append(rows)
        if step.source in self._labels:
            self._labels[step.name] = self._labels[step.source]
        self._add(
            LocalRun(step.name, needs, apply, lambda values: values[source.count] > LOOP_VALUES),
            lambda name: (value := self._columns[step.source](name)) and lifted(value, rows),
            self._known[step.source],
        )

    def _merge(self, step: MergeStep) -> None:
        sources = [self._rows_of(step.name, name) for name in step.sources]
        names = [name for name in self._known[step.sources[0]]() if all(name in self._known[s]() for s in step.sources)]
        rows = RowSet(step.name, self._slot(), self._slot(), self._root, self._root)
        fills = dict[str, tuple[int, list[ColumnValue]]]()

        def column(name: str) -> ColumnValue | None:
            if name not in names:
                return None
            if name not in fills:
                found = [value for source in step.sources if (value := self._columns[source](name))]
                if len({(value.type.kind, value.type.shape) for value in found}) != 1 or found[0].type.kind == IMAGE:
                    return None
                fills[name] = self._slot(), found
            slot, found = fills[name]
            return ColumnValue(found[0].type, rows, lambda values: values[slot])

        nms = [value for name in ("box", "score", "label") if step.nms_iou and (value := column(name))]
        if step.nms_iou and len(nms) < 3:
            raise self._error(step.name, "nms_iou needs the columns box, score and label of each step")

        def compared(values: Values) -> int:
            return sum(values[each.count] for each in sources) if nms else 0

        def apply(values: Values) -> None:
            if compared(values) > REQUEST_ROWS_LIMIT:
                raise StepError(f"compares more than {REQUEST_ROWS_LIMIT} boxes; use select with top before it")
            owned = np.concatenate([owner_of(each, self._root, values) for each in sources])
            values[rows.index] = owned = merged(values, fills.values(), owned, nms, step.nms_iou)
            values[rows.count] = len(owned)

        needs = self._needs(steps=step.sources)
        self._rows[step.name] = rows

        def is_long(values: Values) -> bool:
            return compared(values) > LOOP_BOXES or sum(values[each.count] for each in sources) > LOOP_VALUES

        run = LocalRun(step.name, needs, apply, is_long)
        self._add(run, column, lambda: names)

    def _tile(self, step: TileStep) -> None:
        image = self._compiled(step.image)
        if image.type.kind != IMAGE or image.rows is None:
            raise self._error(step.name, f"'tile' is {image.type.words}; it must be an image")
        above = image.rows
        rows, slot = RowSet(step.name, self._slot(), self._slot(), above, above), self._slot()

        def divided(values: Values) -> Slices[None]:
            made, total = list[list[View]](), 0
            try:
                for view in image.of(values):
                    made.append(tiles(view, step.size, step.overlap, ROWS_LIMIT))
                    yield
                    total += len(made[-1])
                    if total > REQUEST_ROWS_LIMIT:
                        raise StepError(f"makes more than {REQUEST_ROWS_LIMIT} tiles; make them larger")
            except ValueError as error:
                raise StepError(str(error)) from None
            column = np.empty(sum(map(len, made)), object)
            column[:] = [view for each in made for view in each]
            values[slot] = column
            values[rows.index] = np.repeat(np.arange(len(made)), [len(each) for each in made])
            values[rows.count] = len(column)

        columns = {
            "image": ColumnValue(IMAGE_TYPE, rows, lambda values: values[slot]),
            "box": ColumnValue(
                ColumnType(NUMBER, (4,), Datatype.FP32),
                rows,
                lambda values: np.array([view.box for view in values[slot]], np.float32).reshape(-1, 4),
            ),
        }
        self._rows[step.name] = rows
        run = LocalRun(
            step.name,
            self._needs(step.image),
            lambda values: whole_of(divided(values)),
            lambda values: values[above.count] > 1,
            divided,
        )
        self._add(run, columns.get, lambda: list(columns))

    def _match(self, step: MatchStep) -> None:
        value = self._compiled(step.of)
        vectors, names = self._gallery(step.gallery)
        if value.type.kind != NUMBER or len(value.type.shape) != 1 or value.type.shape[0] not in {-1, vectors.shape[1]}:
            words = f"is {value.type.words}, but the vectors of {step.gallery} have {vectors.shape[1]} numbers"
            raise self._error(step.name, f"'of' {words}")
        rows, label, score = value.rows or self._root, self._slot(), self._slot()
        unknown = step.unknown.encode()

        def divided(values: Values) -> Slices[None]:
            asked = np.asarray(spread(value, values, values[rows.count]), np.float32)
            if len(asked) and asked.shape[1] != vectors.shape[1]:
                raise StepError(f"got vectors of {asked.shape[1]} numbers, the gallery's have {vectors.shape[1]}")
            scores, best = yield from nearest(unit_vectors(asked), vectors)
            labels, least = np.empty(len(asked), object), step.least if names else np.inf
            labels[:] = [names[at] if found >= least else unknown for at, found in zip(best, scores, strict=True)]
            values[score], values[label] = scores, labels

        columns = {
            "label": ColumnValue(ColumnType(TEXT, (), Datatype.BYTES), rows, lambda values: values[label]),
            "score": ColumnValue(ColumnType(NUMBER, (), Datatype.FP32), rows, lambda values: values[score]),
        }

        def is_long(values: Values) -> bool:
            return bool(values[rows.count] * vectors.size > LOOP_WORK)

        run = LocalRun(step.name, self._needs(step.of), lambda values: whole_of(divided(values)), is_long, divided)
        self._add(run, columns.get, lambda: list(columns))

    # ---- what callers see --------------------------------------------------------------------------------------------
    def _output(self, name: str, output: Output) -> list[OutputColumn]:
        if isinstance(output, Expression):
            value = self._compiled_optional(output)
            return [self._output_column(name, (name,), value, output)]
        found = {key: self._compiled_optional(each) for key, each in output.items()}
        rows = common_rows(name, list(found.values())) or self._root
        return [
            self._output_column(f"{name}.{key}", (name, key), placed(value, rows), output[key])
            for key, value in found.items()
        ]

    def _compiled_optional(self, expression: Expression) -> ColumnValue:
        return compiled(expression, self._scope(), optional=True)

    def _output_column(
        self, name: str, key: tuple[str, ...], value: ColumnValue, expression: Expression
    ) -> OutputColumn:
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
            batch=True,  # else admission takes it for a bare model, whose inputs may differ in rows
            answered=tuple(spec.name for spec in specs),
            parameters=self._parameters(),
        )

    def _parameters(self) -> dict[str, str]:
        """Return whether there is state, which language models run, and which outputs are totals or times."""
        counts = [step for step in self._pipeline.steps if isinstance(step, CountStep)]
        given = {
            f"{name}.{key}" if key else name: expression.text
            for name, output in self._pipeline.outputs.items()
            for key, expression in ([("", output)] if isinstance(output, Expression) else output.items())
        }
        columns = {
            TOTALS: {f"{step.name}.{column}" for step in counts for column in step.totals},
            DURATIONS: {f"{step.name}.{column}" for step in counts for column in step.durations},
        }
        named = {key: " ".join(name for name, text in given.items() if text in each) for key, each in columns.items()}
        models = [run for run in self._runs if isinstance(run, ModelRun)]
        asks = {run.step.model for run in models if is_generative(run.manifest) or ASKS in run.manifest.parameters}
        parameters = {STATE: "stream" if self._states else "", ASKS: " ".join(sorted(asks)), **named}
        return {key: text for key, text in parameters.items() if text}


def _size(column: Array) -> int:
    """Return how many numbers, or bytes of texts, a column of an input has."""
    return column.size if column.dtype != object else sum(map(len, column))
