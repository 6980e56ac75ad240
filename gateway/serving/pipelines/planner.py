"""Names, rows and needs of a pipeline's steps while it is compiled, and its steps with state. Pure.

A step with state reads and writes it in the `Turn` of its request, which the passage puts into a slot.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gateway.common.domain.document import read_document
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.expressions import Expression
from gateway.common.domain.manifest import IMAGE_FORMATS, ROWS, ModelManifest, Preprocess, TensorSpec
from gateway.common.domain.pipeline import (
    CountStep,
    MergeStep,
    ModelStep,
    Pipeline,
    PipelineInput,
    PythonStep,
    SelectStep,
    TileStep,
    TrackStep,
    WindowStep,
)
from gateway.common.domain.tensor import Array, Datatype
from gateway.serving.engine.images import image_size
from gateway.serving.pipelines.columns import (
    FLAG,
    IMAGE,
    IMAGE_TYPE,
    INTEGER_TYPE,
    NUMBER,
    NUMBER_TYPE,
    TEXT,
    ColumnType,
    ColumnValue,
    RowSet,
    Values,
    lifted,
    owner_of,
    spread,
)
from gateway.serving.pipelines.compiler import ExpressionNames
from gateway.serving.pipelines.functions import compiled
from gateway.serving.pipelines.runs import DecodeRun, LocalRun, Run
from gateway.serving.pipelines.slices import Slices, whole_of
from gateway.serving.pipelines.tracking import CountedPlaces, Tracks, count_objects, follow
from gateway.serving.pipelines.windows import StreamValues, windows
from gateway.serving.tasks.views import View

LOOP_PAIRS = 400
"""Most pairs of boxes that a frame's tracking compares on the event loop: 0.4 ms, 1 to 2 ms if all are in one place."""
LOOP_CORNERS = 5_000
"""Most objects times corners of zones and lines of a frame that is counted on the event loop: about 1 ms."""
LOOP_HEADER_BYTES = 16_384
"""Largest image whose header is read on the event loop: an odd one is thousands of parts, each read by Python."""
LOOP_NUMBERS = 100_000
"""Most numbers of an input, and of the windows that it makes, on the event loop."""
WINDOW_BYTES = 2**24
"""Largest window, which a stream keeps, in bytes."""
MOVED = ("align", "turn", "warp")
"""Functions that make pictures whose places are not those of the image."""
NO_TRACKS = Tracks()
PIXELS = Preprocess(IMAGE_FORMATS)
"""Images for Python code: RGB, as large as they are."""
Manifests = Callable[[str, str], ModelManifest]
"""Function that returns the manifest of a model's version. Raises RequestError if it does not serve."""
Gallery = Callable[[str], tuple[Array, tuple[bytes, ...]]]
"""Function that returns the vectors [n, d], of length 1, and labels of a gallery's file. Raises ConfigurationError."""


class Planner:
    """Planner of what all steps share, and of the steps with state."""

    def __init__(self, pipeline: Pipeline, manifests: Manifests, gallery: Gallery) -> None:
        self._pipeline, self._manifests, self._gallery = pipeline, manifests, gallery
        self._slots = 0
        self._root = RowSet("input", self._slot(), self._slot())
        self._runs = list[Run]()
        self._by_name = dict[str, int]()
        self._columns = dict[str, Callable[[str], ColumnValue | None]]()
        self._known = dict[str, Callable[[], list[str]]]()
        self._rows = dict[str, RowSet]()
        self._labels = dict[str, Sequence[str]]()
        self._inputs = dict[str, tuple[PipelineInput, int]]()
        self._bare = dict[str, ColumnValue]()
        self._pixels = set[str]()
        self._seen = list[list[str]]()
        self._states, self._turn = list[int](), -1
        self._successive = [self._root]
        """Rows that come one after the other in a stream."""

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
        self._bare[declared.name] = ColumnValue(of_type, self._root, lambda values: values[slot])

    def _scope(self, bare: Mapping[str, ColumnValue] | None = None, near: Sequence[str] = ()) -> ExpressionNames:
        return ExpressionNames(
            columns=lambda step, name: self._columns[step](name) if step in self._columns else None,
            bare={**self._bare, **(bare or {})},
            rows=self._rows,
            labels=self._labels,
            known=lambda step: self._known[step]() if step in self._known else (),
            near=near,
        )

    def _compiled(self, expression: Expression) -> ColumnValue:
        for name in expression.names:
            if name in self._inputs and self._inputs[name][0].kind == IMAGE:
                self._pixels.add(name)
        return compiled(expression, self._scope())

    def _needs(self, *expressions: Expression | None, steps: Sequence[str] = ()) -> frozenset[int]:
        named = [*steps]
        for each in filter(None, expressions):
            named += [step for step, _ in each.columns]
            named += each.names
        return frozenset(self._by_name[name] for name in named if name in self._by_name)

    def _add(self, run: Run, columns: Callable[[str], ColumnValue | None], known: Callable[[], list[str]]) -> None:
        self._by_name[run.name] = len(self._runs)
        self._runs.append(run)
        self._columns[run.name], self._known[run.name] = columns, known

    def _at(self, value: ColumnValue, rows: RowSet, step: str, words: str) -> ColumnValue:
        """Return a value with one row for each of `rows`. Raises ConfigurationError if those were not made of its."""
        if value.rows is not None and value.rows not in rows.lineage():
            raise self._error(step, f"{words} reads rows of '{value.rows.name}', of which '{rows.name}' was not made")
        return lifted(value, rows)

    def _rows_of(self, step: str, name: str) -> RowSet:
        if (rows := self._rows.get(name)) is None:
            raise self._error(step, f"'{name}' has no rows of its own: it is no detector, tile, select or merge")
        return rows

    def _column(self, step: TrackStep | CountStep, name: str, *shape: int) -> ColumnValue:
        """Return a column of the source of a step."""
        value = self._columns[step.source](name)
        if value is None or (value.type.kind, value.type.shape) != (NUMBER, shape):
            raise self._error(step.name, f"'{step.source}' has no column '{name}', as detectors have")
        return value

    def _python(self, step: PythonStep) -> ModelManifest:
        """Return what stands for the model of a step with Python code: inputs of the types of their expressions."""
        first = (ROWS,) if step.batch else ()
        inputs = list[TensorSpec]()
        for name, expression in step.inputs.items():
            of_type = self._compiled(expression).type
            if of_type.kind == IMAGE:
                inputs.append(TensorSpec(name or "of", Datatype.UINT8, (*first, -1, -1, 3), "NHWC", preprocess=PIXELS))
            else:
                inputs.append(TensorSpec(name or "of", of_type.datatype, (*first, *of_type.shape)))
        outputs = tuple(TensorSpec(each.name, each.datatype, (*first, *each.shape)) for each in step.outputs)
        return ModelManifest(step.model, "", tuple(inputs), outputs, (), batch=step.batch)

    # ---- steps with state --------------------------------------------------------------------------------------------
    def _turn_slot(self) -> int:
        """Note that the next run has state. Return the slot of the turn, which pipelines without state do not have."""
        self._states.append(len(self._runs))
        if self._turn < 0:
            self._turn = self._slot()
        return self._turn

    def _track(self, step: TrackStep) -> None:
        source, root, turn = self._rows_of(step.name, step.source), self._root, self._turn_slot()
        if source.owner is not root:
            words = f"'{step.source}' has several lists for one frame; join them with a merge step first"
            raise self._error(step.name, words)
        box, score, of = self._column(step, "box", 4), self._column(step, "score"), self._columns[step.source]
        rows, number, age = RowSet(step.name, self._slot(), self._slot(), source, root), self._slot(), self._slot()
        own = {
            name: ColumnValue(INTEGER_TYPE, rows, lambda values, slot=slot: values[slot])  # type: ignore[misc]
            for name, slot in (("track", number), ("frames", age))
        }
        if twice := own.keys() & set(self._known[step.source]()):
            raise self._error(step.name, f"'{step.source}' has a column '{min(twice)}' already")

        def divided(values: Values) -> Slices[None]:
            state, boxes, scores = values[turn].states.get(step.name, NO_TRACKS), box.of(values), score.of(values)
            numbers, ages = np.zeros((2, len(boxes)), np.int64)
            for places in frames_of(source, root, values):
                state, numbers[places], ages[places] = yield from follow(state, boxes[places], scores[places], step)
                yield
            values[turn].states[step.name], kept = state, np.flatnonzero(numbers)
            values[number], values[age] = numbers[kept], ages[kept]
            values[rows.index], values[rows.count] = kept, len(kept)

        def is_long(values: Values) -> bool:
            found, state = values[source.count], values[turn].states.get(step.name, NO_TRACKS)
            return bool(values[root.count] > 1 or found * (found + len(state.table)) > LOOP_PAIRS)

        self._rows[step.name] = rows
        if step.source in self._labels:
            self._labels[step.name] = self._labels[step.source]
        needs, known = self._needs(steps=[step.source]), self._known[step.source]
        self._add(
            LocalRun(step.name, needs, lambda values: whole_of(divided(values)), is_long, divided),
            lambda name: own.get(name) or ((value := of(name)) and lifted(value, rows)),
            lambda: [*known(), *own],
        )

    def _window(self, step: WindowStep) -> None:
        value = self._compiled(step.of)
        source, inner = value.rows or self._root, value.type.shape
        first = next((place for place, size in enumerate(inner) if size != 1), 0)
        if inner[first : first + 1] == (ROWS,):  # a row has values, else it is one
            inner = inner[first + 1 :]
        if value.type.kind != NUMBER or ROWS in inner:
            raise self._error(step.name, f"'of' is {value.type.words}; it must be numbers of a fixed shape")
        self._check_successive(step.name, source)
        dtype, most = value.type.datatype.dtype, max(step.size, step.hop)
        if (size := most * int(np.prod(inner)) * dtype.itemsize) > WINDOW_BYTES:
            raise self._error(step.name, f"a window has {size} bytes, at most {WINDOW_BYTES} are kept; make it shorter")
        root, turn, slot = self._root, self._turn_slot(), self._slot()
        rows = RowSet(step.name, self._slot(), self._slot(), source, root)

        def apply(values: Values) -> None:
            given = spread(value, values, values[source.count])
            samples = np.asarray(given, dtype).reshape(-1, *inner)
            state = values[turn].states.get(step.name)
            if state is None or (state.values.shape[1:], state.values.dtype) != (inner, dtype):  # a model was replaced
                state = StreamValues(np.zeros((0, *inner), dtype), step.size)
            values[turn].states[step.name], ends, values[slot] = windows(state, samples, step.size, step.hop)
            values[rows.index] = ends * len(given) // max(1, len(samples))
            values[rows.count] = len(ends)

        self._rows[step.name] = rows
        self._successive.append(rows)
        columns = {
            "window": ColumnValue(
                ColumnType(NUMBER, (step.size, *inner), value.type.datatype), rows, lambda values: values[slot]
            )
        }
        read = [slot for each, slot in self._inputs.values() if each.name in step.of.names and each.kind != IMAGE]
        run = LocalRun(
            step.name,
            self._needs(step.of),
            apply,
            lambda values: any(values[slot].size * max(1.0, step.size / step.hop) > LOOP_NUMBERS for slot in read),
        )
        self._add(run, columns.get, lambda: list(columns))

    def _check_successive(self, step: str, rows: RowSet) -> None:
        """Refuse rows of one moment, such as the objects of a frame, where state goes from row to row."""
        if rows not in self._successive:
            words = f"has state, which goes from row to row, but the rows of '{rows.name}' are of one moment"
            raise self._error(step, f"{words}; use a function over rows, such as max, or a step without state")

    def _count(self, step: CountStep) -> None:
        steps = {each.name: each for each in self._pipeline.steps}
        tracked = steps.get(step.source)
        while isinstance(tracked, SelectStep):
            tracked = steps.get(tracked.source)
        if not isinstance(tracked, TrackStep):
            raise self._error(step.name, f"'{step.source}' is no track step, nor a select of one")
        declared, pictures = self._inputs.get(step.image, (None, 0))
        if declared is None or declared.kind != IMAGE:
            raise self._error(step.name, f"image names '{step.image}', which is no image input")
        self._check_seen(step, tracked.source)
        source, root, turn = self._rows_of(step.name, step.source), self._root, self._turn_slot()
        box, number = self._column(step, "box", 4), self._column(step, "track")
        lines = np.array(list(step.lines.values()), np.float64).reshape(-1, 2, 2)
        zones = [np.array(zone, np.float64) for zone in step.zones.values()]
        counted = CountedPlaces(lines, zones, tracked.lost)
        crossed, inside, stayed = self._slot(), self._slot(), self._slot()

        def divided(values: Values) -> Slices[None]:
            state, at_s, count = values[turn].states.get(step.name), values[turn].at_s, values[root.count]
            boxes, numbers = np.asarray(box.of(values), np.float64), number.of(values)
            crossings = np.zeros((count, 4 * len(lines)), np.int64)
            within, stays = np.zeros((count, len(zones)), np.int64), np.zeros((count, len(zones)))
            for row, places in enumerate(frames_of(source, root, values)):
                picture = values[pictures][row]
                size = picture.image.size if isinstance(picture, View) else image_size(bytes(picture), row, step.image)
                x1, _, x2, bottom = boxes[places].T
                feet = np.column_stack(((x1 + x2) / 2, bottom)) / size
                state, crossing, within[row], stays[row] = count_objects(state, numbers[places], feet, at_s, counted)
                crossings[row] = np.concatenate((crossing, state.totals), axis=1).ravel()
                yield
            values[turn].states[step.name] = state
            values[crossed], values[inside], values[stayed] = crossings, within, stays

        corners = 2 * len(lines) + sum(map(len, zones))

        def is_long(values: Values) -> bool:
            several, given = values[root.count] > 1 or values[source.count] * corners > LOOP_CORNERS, values[pictures]
            return bool(several or (not isinstance(given[0], View) and len(given[0]) > LOOP_HEADER_BYTES))

        places = [(crossed, at) for at in range(4 * len(lines))]
        places += [(slot, at) for at in range(len(zones)) for slot in (inside, stayed)]
        columns = {
            name: ColumnValue(
                NUMBER_TYPE if slot == stayed else INTEGER_TYPE,
                root,
                lambda values, slot=slot, at=at: values[slot][:, at],  # type: ignore[misc]
            )
            for name, (slot, at) in zip(step.columns, places, strict=True)
        }
        needs = self._needs(steps=[step.source, step.image])
        run = LocalRun(step.name, needs, lambda values: whole_of(divided(values)), is_long, divided)
        self._add(run, columns.get, lambda: list(columns))

    def _check_seen(self, step: CountStep, source: str) -> None:
        """Refuse detectors whose boxes are not in pixels of the upright image of a `count` step."""
        steps, left = {each.name: each for each in self._pipeline.steps}, [source]
        while left:
            each = steps[left.pop()]
            if isinstance(each, SelectStep):
                left.append(each.source)
            elif isinstance(each, MergeStep):
                left += each.sources
            elif isinstance(each, ModelStep):
                manifest = self._manifests(each.model, each.version)
                turned = [one for one in manifest.inputs if one.preprocess and one.preprocess.orientation == "stored"]
                seen = [expression.tree for expression in each.inputs.values()]
                if turned or not all(self._shows(tree, step.image) for tree in seen):
                    words = f"the boxes of '{each.name}' are not in pixels of '{step.image}' as it is seen upright"
                    raise self._error(step.name, f"{words}; let it find objects in that image, a crop or a tile of it")

    def _shows(self, tree: ast.expr, image: str) -> bool:
        """Return False for a picture that is another one than an image, its crops and tiles."""
        if isinstance(tree, ast.Name):
            declared, _ = self._inputs.get(tree.id, (None, 0))
            return declared is None or declared.kind != IMAGE or tree.id == image
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name):
            return tree.func.id not in MOVED and (tree.func.id != "crop" or self._shows(tree.args[0], image))
        if isinstance(tree, ast.Attribute) and isinstance(tree.value, ast.Name):
            tile = {each.name: each for each in self._pipeline.steps}.get(tree.value.id)
            return not isinstance(tile, TileStep) or self._shows(tile.image.tree, image)
        return True


def frames_of(rows: RowSet, root: RowSet, values: Values) -> list[Array]:
    """Return the places of the rows of each of the request's rows, which are frames."""
    owners = owner_of(rows, root, values)
    ends = np.cumsum(np.bincount(owners, minlength=values[root.count]))
    return np.split(np.argsort(owners, kind="stable"), ends[:-1])
