"""Declaration of a pipeline, several models that answer as one: inputs, steps, outputs. Values, and the TOML reader.

The form is in docs/pages/reference/pipeline.md. What needs the manifests of the models is checked when they are known
(`gateway.serving.pipelines`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from keyword import kwlist
from typing import Any

from gateway.common.domain.document import Table, read_document
from gateway.common.domain.expressions import Expression, ExpressionError, parse_expression
from gateway.common.domain.manifest import ROWS, Artifact, Golden, ModelManifest, StreamLimits, TensorSpec, Variant
from gateway.common.domain.manifest_toml import (
    DIMENSION_LIMIT,
    NAME_PATTERN,
    SCHEMA,
    WINDOW_LIMIT_ROWS,
    golden_table,
    stream_limits,
)
from gateway.common.domain.tensor import DATATYPES, Datatype

PIPELINE = "pipeline.toml"
"""Name of the file, in the folder of the version."""
RUNTIME = "pipeline"
"""Name of what runs it, in place of a runtime, and of its only variant."""
STEPS_LIMIT = 64
NAMES_LIMIT = 64
"""Most inputs, outputs, or columns of a rule."""
ROWS_LIMIT = 1_000
"""Most rows that one request may make of one of its rows: of tiles, of objects."""
REQUEST_ROWS_LIMIT = 10_000
"""Most rows of one step of one request: more than any step makes of one row, for all rows."""
SIDE_LIMIT = 8_192
"""Largest side of a tile, in pixels."""
DEADLINE_LIMIT_S = 3_600.0
LOST_LIMIT = 10_000
"""Most frames that an object may be lost."""
ZONE_POINTS_LIMIT = 64
PYTHON_MIB = 512
"""Data of a Python step's process unless it declares another bound; Python and numpy take about 60."""
STEP_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,31}")
TENSOR_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
"""Names of inputs and outputs, which clients of other servers may know in capitals."""
CODE_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
"""Names of inputs and outputs of Python code, which may be that of other servers."""
_TENSOR = re.compile(r"([A-Z0-9]+)\[([0-9, -]*)\]")
STATE = "state"
"""Parameter of the manifest of a pipeline that has steps with state."""
TOTALS, DURATIONS = "totals", "durations_s"
"""Parameters with the names of its outputs that are totals, and that are times, of `count` steps."""
IMAGE, TEXT = "image", "text"
"""Inputs that are no plain tensors: an encoded JPEG or PNG image, and a text in UTF-8."""
KINDS = ("model", "rule", "select", "merge", "tile", "match", "track", "count", "window", "python")
"""Keys that name the kind of a step."""
RESERVED = frozenset({"true", "false", "result", "task", *kwlist})


@dataclass(frozen=True, slots=True)
class PipelineInput:
    """Input of a pipeline. `kind` is `image`, `text` or `tensor`; `shape` is that of one row, without the rows."""

    name: str
    kind: str
    datatype: Datatype = Datatype.BYTES
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStep:
    """Run of a model. `inputs`: expression by the model's input; the key "" is its only one.

    Rows for which `when` is false are skipped; their values are those of the step `otherwise`, or absent. A run that
    fails, or takes longer than `deadline_s` (0: what the request has left), has the values of `fallback`; None: the
    request fails. `version` "" is the version that the model's name leads to.
    """

    name: str
    model: str
    version: str
    inputs: Mapping[str, Expression]
    when: Expression | None = None
    otherwise: str = ""
    deadline_s: float = 0.0
    fallback: Mapping[str, float | str | bool] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonStep(ModelStep):
    """Run of a class in a `file` of the release, in a process of its own, which has the outputs that are declared.

    `model` names no model but this step. `files`: others that its code reads. `parameters` are for the class. `batch`
    False: it runs for one row at a time, without the dimension of rows. `stream`: it gets the stream of each request,
    and those of a stream in their order.
    """

    file: str
    entry: str
    outputs: tuple[PipelineInput, ...]
    files: tuple[str, ...] = ()
    parameters: Mapping[str, str] = field(default_factory=dict)
    memory_mib: int = PYTHON_MIB
    batch: bool = True
    stream: bool = False


@dataclass(frozen=True, slots=True)
class RuleStep:
    """Columns computed from others."""

    name: str
    columns: Mapping[str, Expression]


@dataclass(frozen=True, slots=True)
class SelectStep:
    """Rows of `source` for which `where` holds, the `top` first of them by `by`, descending (0: all)."""

    name: str
    source: str
    where: Expression | None = None
    by: Expression | None = None
    top: int = 0


@dataclass(frozen=True, slots=True)
class MergeStep:
    """Objects of several steps, or of all tiles, as one list; with `nms_iou` > 0 without those that overlap more."""

    name: str
    sources: tuple[str, ...]
    nms_iou: float = 0.0


@dataclass(frozen=True, slots=True)
class TileStep:
    """Tiles of `size` (height, width) pixels that cover an image; neighbours share `overlap` (0 to 0.9) of a side."""

    name: str
    image: Expression
    size: tuple[int, int]
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class MatchStep:
    """Nearest entry, by cosine similarity, of a `gallery` (a file of the version's folder) to the vectors `of`.

    An entry with less than `least` similarity is none: its label is `unknown`.
    """

    name: str
    gallery: str
    of: Expression
    least: float = 0.5
    unknown: str = "unknown"


@dataclass(frozen=True, slots=True)
class TrackStep:
    """Objects of `source` that are followed from frame to frame of a stream.

    Scores from `high` on are matched first, then those from `low` on. An object is forgotten after `lost` frames.
    """

    name: str
    source: str
    high: float = 0.5
    low: float = 0.1
    lost: int = 30


Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class CountStep:
    """Objects of `source`, which are followed, that cross lines and are in zones: places in shares of an `image`."""

    name: str
    source: str
    image: str
    lines: Mapping[str, tuple[Point, ...]]
    zones: Mapping[str, tuple[Point, ...]]

    @property
    def columns(self) -> list[str]:
        """Return the names of its columns: four for each line, two for each zone."""
        of_lines = [f"{line}_{way}" for line in self.lines for way in ("in", "out", "in_total", "out_total")]
        return of_lines + [f"{zone}{part}" for zone in self.zones for part in ("", "_s")]

    @property
    def totals(self) -> list[str]:
        """Return the names of the columns that only grow."""
        return [f"{line}_{way}_total" for line in self.lines for way in ("in", "out")]

    @property
    def durations(self) -> list[str]:
        """Return the names of the columns with times."""
        return [f"{zone}_s" for zone in self.zones]


@dataclass(frozen=True, slots=True)
class WindowStep:
    """Windows of the last `size` values `of` a stream; a new one is complete every `hop` values.

    Each row is one value, or several if its first size is open.
    """

    name: str
    of: Expression
    size: int
    hop: int


Step = ModelStep | RuleStep | SelectStep | MergeStep | TileStep | MatchStep | TrackStep | CountStep | WindowStep
Output = Expression | Mapping[str, Expression]
"""Value of an output: an expression, or one object for each row of a step, with expressions by key."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Pipeline as its author declares it. A step reads inputs and earlier steps only: there are no cycles."""

    name: str
    version: str
    inputs: tuple[PipelineInput, ...]
    steps: tuple[Step, ...]
    outputs: Mapping[str, Output]
    text: str = ""
    file: str = ""
    golden: Golden | None = None
    state: StreamLimits | None = None

    @property
    def galleries(self) -> tuple[str, ...]:
        """Return the galleries that it reads, each once."""
        return tuple(dict.fromkeys(step.gallery for step in self.steps if isinstance(step, MatchStep)))

    @property
    def python(self) -> tuple[PythonStep, ...]:
        """Return the steps that run code of the release."""
        return tuple(step for step in self.steps if isinstance(step, PythonStep))

    @property
    def files(self) -> tuple[str, ...]:
        """Return the files of its release besides itself, each once: galleries, code, and what that reads."""
        code = [file for step in self.python for file in (step.file, *step.files)]
        return tuple(dict.fromkeys((*self.galleries, *code)))

    @property
    def models(self) -> tuple[tuple[str, str], ...]:
        """Return name and version ("": any) of each model that it runs, once."""
        models = (step for step in self.steps if isinstance(step, ModelStep) and not isinstance(step, PythonStep))
        named = ((step.model, step.version) for step in models)
        return tuple(dict.fromkeys(named))


def pipeline_manifest(pipeline: Pipeline, artifacts: tuple[Artifact, ...]) -> ModelManifest:
    """Return what stands for a pipeline among releases: its inputs, the names of its outputs, and one variant.

    The variant's `artifacts` are its files. Types of outputs are those of the models, which are not known here.
    """
    inputs = tuple(TensorSpec(each.name, each.datatype, (ROWS, *each.shape)) for each in pipeline.inputs)
    names = [
        f"{name}.{key}" if key else name
        for name, output in pipeline.outputs.items()
        for key in ([""] if isinstance(output, Expression) else output)
    ]
    outputs = tuple(TensorSpec(name, Datatype.BYTES, (ROWS,)) for name in names)
    variant = Variant(RUNTIME, RUNTIME, "none", artifacts)
    return ModelManifest(pipeline.name, pipeline.version, inputs, outputs, (variant,), golden=pipeline.golden)


def keeps_state(manifest: ModelManifest) -> bool:
    """Return True for a pipeline with state, and for a model with sequences."""
    return manifest.sequence is not None or (not manifest.variants and STATE in manifest.parameters)


def read_pipeline(text: str, file: str) -> Pipeline:
    """Parse a pipeline; `file` is named in errors. Raises ConfigurationError (file, table, key, line)."""
    top = read_document(text, file)
    top.integer("schema", low=SCHEMA, high=SCHEMA)
    name, version = _model_name(top, "name", top.text("name")), _model_name(top, "version", top.text("version"))
    inputs = _inputs(top)
    known = {each.name for each in inputs}
    steps = list[Step]()
    for table in top.tables("step"):
        steps.append(_step(table, known))
        known.add(steps[-1].name)
    if not any(isinstance(step, ModelStep) for step in steps):
        top.refuse("step", 'missing; a pipeline runs at least one model: [[step]] with model = "…"')
    if len(steps) > STEPS_LIMIT:
        top.refuse("step", f"{len(steps)} steps; at most {STEPS_LIMIT} are read; divide the pipeline")
    outputs, golden = _outputs(top), golden_table(top.table("golden"), (RUNTIME,))
    state = None
    if (limits := top.table("state")) is not None:  # whether a model has state is not known here
        state = stream_limits(limits, 1.0)
        limits.finish()
    top.finish()
    return Pipeline(name, version, inputs, tuple(steps), outputs, text, file, golden, state)


def _inputs(top: Table) -> tuple[PipelineInput, ...]:
    table = top.table("input", required=True)
    found = list[PipelineInput]()
    for name in table.remaining() if table else ():
        if table is None:
            break
        _check_name(table, name)
        found.append(_kind(table, name, IMAGE, TEXT))
    if not 0 < len(found) <= NAMES_LIMIT:
        top.refuse("input", f"must name 1 to {NAMES_LIMIT} inputs, not {len(found)}")
    return tuple(found)


def _kind(table: Table, name: str, *kinds: str) -> PipelineInput:
    """Read the kind of an input, or of an output of Python code: one of `kinds`, or a tensor."""
    kind = table.text(name)
    if kind in kinds:
        return PipelineInput(name, kind)
    form = _TENSOR.fullmatch(kind)
    if form is None or form[1] not in DATATYPES or form[1] == "BYTES":
        words = ", ".join(f'"{each}"' for each in kinds)
        table.refuse(name, f'must be {words}, or a datatype with the shape of a row, "FP32[16]", not {kind!r:.80}')
    sizes = [int(size) for size in form[2].replace(" ", "").split(",") if re.fullmatch(r"-?\d{1,10}", size)]
    if form[2].strip() and len(sizes) != form[2].count(",") + 1:
        table.refuse(name, f"has no shape in {kind!r:.80}; write sizes with commas between them")
    if any(not (size == -1 or 0 < size <= DIMENSION_LIMIT) for size in sizes):
        table.refuse(name, f"sizes must be positive, or -1 for any size, not {sizes}")
    return PipelineInput(name, "tensor", DATATYPES[form[1]], tuple(sizes))


def _outputs(top: Table) -> dict[str, Output]:
    table = top.table("output", required=True)
    found = dict[str, Output]()
    for name in table.remaining() if table else ():
        if table is None:
            break
        _check_name(table, name, is_new=False)
        if name == "result":
            table.refuse(name, "is the name of the document that each answer has; use another name")
        found[name] = _named(table, name) if table.holds_table(name) else _expression(table, name)
    if not 0 < len(found) <= NAMES_LIMIT:
        top.refuse("output", f"must name 1 to {NAMES_LIMIT} outputs, not {len(found)}")
    return found


def _step(table: Table, known: set[str]) -> Step:
    name = table.text("name")
    _check_name(table, name, "name")
    if name in known:
        table.refuse("name", f"{name!r} is the name of another step or input; names must differ")
    kinds = [kind for kind in KINDS if kind in table]
    if len(kinds) != 1:
        named = f"it has {' and '.join(kinds)}" if kinds else "it has none"
        table.refuse("name", f"step {name!r} must have one of {', '.join(KINDS)}; {named}")
    step: Step = _READERS[kinds[0]](table, name, known)
    table.finish()
    return step


def _model_step(table: Table, name: str, known: set[str]) -> ModelStep:
    model, _, version = table.text("model").partition("@")
    of_version = _model_name(table, "model", version) if version else ""
    return ModelStep(model=_model_name(table, "model", model), version=of_version, **_run_keys(table, name, known))


def _python_step(table: Table, name: str, known: set[str]) -> PythonStep:
    file, entry, files = table.text("python"), table.text("class", "Step"), table.texts("files", ())
    if not file.endswith(".py"):
        table.refuse("python", f"must name a .py file of this folder, not {file!r:.80}")
    for key, each in (("python", file), *(("files", each) for each in files)):
        if not NAME_PATTERN.fullmatch(each) or each == PIPELINE:
            table.refuse(key, f"must name files of this folder, not {each!r:.80}")
    if not entry.isidentifier():
        table.refuse("class", f"must be the name of a class in {file}, not {entry!r:.80}")
    inner = table.table("outputs", required=True)
    outputs = tuple(_kind(inner, each, TEXT) for each in inner.remaining()) if inner else ()
    keys = _run_keys(table, name, known)
    for key, names in (("outputs", [each.name for each in outputs]), ("inputs", keys["inputs"])):
        if not 0 < len(names) <= NAMES_LIMIT or not all(each == "" or CODE_PATTERN.fullmatch(each) for each in names):
            table.refuse(key, f"must have 1 to {NAMES_LIMIT} names of letters, digits or '_'")
    if (has_stream := table.flag("stream", default=False)) and "stream" in keys["inputs"]:
        table.refuse("inputs", "has 'stream', the name of the argument with the stream; rename that input")
    parameters = _values(table, "parameters")
    if not all(isinstance(value, str) for value in parameters.values()):
        table.refuse("parameters", "must be texts")
    return PythonStep(
        model=f"python:{name}",
        version="",
        file=file,
        entry=entry,
        outputs=outputs,
        files=files,
        parameters={key: str(value) for key, value in parameters.items()},
        memory_mib=table.integer("memory_mib", PYTHON_MIB, low=64, high=65_536),
        batch=table.flag("batch", default=True),
        stream=has_stream,
        **keys,
    )


def _run_keys(table: Table, name: str, known: set[str]) -> dict[str, Any]:
    """Read what steps with a model and with Python code have in common."""
    inputs = _expressions(table, "inputs") if "inputs" in table else {"": _expression(table, "of")}
    otherwise = table.text("else", "")
    if otherwise and otherwise not in known:
        table.refuse("else", f"{otherwise!r} is no earlier step")
    when = _expression(table, "when") if "when" in table else None
    if otherwise and when is None:
        table.refuse("else", "is for rows that 'when' skips; add 'when' or remove it")
    return {
        "name": name,
        "inputs": inputs,
        "when": when,
        "otherwise": otherwise,
        "deadline_s": table.number("deadline_s", 0.0, low=0.0, high=DEADLINE_LIMIT_S),
        "fallback": _values(table, "fallback") if "fallback" in table else None,
    }


def _rule_step(table: Table, name: str, _known: set[str]) -> RuleStep:
    return RuleStep(name, _named(table, "rule"))


def _select_step(table: Table, name: str, known: set[str]) -> SelectStep:
    by = _expression(table, "by") if "by" in table else None
    where = _expression(table, "where") if "where" in table else None
    top = table.integer("top", 0, low=0, high=ROWS_LIMIT)
    if by is not None and not top:
        table.refuse("by", "orders the rows of which 'top' remain; add 'top' or remove it")
    return SelectStep(name, _earlier(table, "select", table.text("select"), known), where, by, top)


def _merge_step(table: Table, name: str, known: set[str]) -> MergeStep:
    sources = tuple(_earlier(table, "merge", source, known) for source in table.texts("merge"))
    if not sources or len(set(sources)) < len(sources):
        table.refuse("merge", "must name each step once, and at least one")
    return MergeStep(name, sources, table.number("nms_iou", 0.0, low=0.0, high=1.0))


def _tile_step(table: Table, name: str, _known: set[str]) -> TileStep:
    sizes = table.integers("size")
    if len(sizes) != 2 or not all(0 < side <= SIDE_LIMIT for side in sizes):
        table.refuse("size", f"must be [height, width] in pixels, 1 to {SIDE_LIMIT}, not {list(sizes)}")
    image, overlap = _expression(table, "tile"), table.number("overlap", 0.0, low=0.0, high=0.9)
    return TileStep(name, image, (sizes[0], sizes[1]), overlap)


def _match_step(table: Table, name: str, _known: set[str]) -> MatchStep:
    gallery, of = table.text("match"), _expression(table, "of")
    if not NAME_PATTERN.fullmatch(gallery) or not gallery.endswith(".npz"):
        table.refuse("match", f"must name an .npz file of this folder, not {gallery!r:.80}")
    return MatchStep(
        name, gallery, of, table.number("least", 0.5, low=-1.0, high=1.0), table.text("unknown", "unknown")
    )


def _track_step(table: Table, name: str, known: set[str]) -> TrackStep:
    high, low = table.number("high", 0.5, low=0.0, high=1.0), table.number("low", 0.1, low=0.0, high=1.0)
    if low > high:
        table.refuse("low", f"must be at most 'high', which is {high:g}")
    lost = table.integer("lost", 30, low=0, high=LOST_LIMIT)
    return TrackStep(name, _earlier(table, "track", table.text("track"), known), high, low, lost)


def _count_step(table: Table, name: str, known: set[str]) -> CountStep:
    source = _earlier(table, "count", table.text("count"), known)
    image = _earlier(table, "image", table.text("image"), known)
    step = CountStep(name, source, image, _places(table, "lines"), _places(table, "zones"))
    if not 0 < len(step.lines) + len(step.zones) <= NAMES_LIMIT:
        table.refuse("count", f"needs 1 to {NAMES_LIMIT} lines and zones, in the tables lines and zones")
    if twice := [each for each in step.columns if step.columns.count(each) > 1]:
        table.refuse("count", f"has two columns with the name {twice[0]!r}; rename a line or zone")
    return step


def _window_step(table: Table, name: str, _known: set[str]) -> WindowStep:
    inner = table.table("window", required=True)
    if inner is None:
        table.refuse("window", 'must be a table: window = { of = "…", rows = 16, hop = 4 }')
    size = inner.integer("rows", low=1, high=WINDOW_LIMIT_ROWS)
    step = WindowStep(name, _expression(inner, "of"), size, inner.integer("hop", size, low=1, high=WINDOW_LIMIT_ROWS))
    inner.finish()
    return step


def _places(table: Table, key: str) -> dict[str, tuple[Point, ...]]:
    """Read lines, [x1, y1, x2, y2], or zones, [[x, y], …]."""
    inner, found = table.table(key), dict[str, tuple[Point, ...]]()
    is_line = key == "lines"
    low, high = (2, 2) if is_line else (3, ZONE_POINTS_LIMIT)
    form = "[x1, y1, x2, y2]" if is_line else f"{low} to {high} points [x, y]"
    for name in inner.remaining() if inner else ():
        if inner is None:
            break
        _check_name(inner, name, name)
        value = inner.take(name)
        points = [value[:2], value[2:]] if is_line and isinstance(value, list) else value
        if not (isinstance(points, list) and low <= len(points) <= high and all(map(_is_place, points))):
            inner.refuse(name, f"must be {form}, in shares of the picture from 0 to 1")
        if len(places := {tuple(point) for point in points}) < len(points):
            inner.refuse(name, f"has {len(points)} points, of which {len(points) - len(places)} are equal to others")
        found[name] = tuple((float(x), float(y)) for x, y in points)
    return found


def _is_place(point: Any) -> bool:
    is_pair = isinstance(point, list) and len(point) == 2
    return is_pair and all(type(share) in {int, float} and 0 <= share <= 1 for share in point)


_READERS: Mapping[str, Any] = {
    "model": _model_step,
    "rule": _rule_step,
    "select": _select_step,
    "merge": _merge_step,
    "tile": _tile_step,
    "match": _match_step,
    "track": _track_step,
    "count": _count_step,
    "window": _window_step,
    "python": _python_step,
}


def _expression(table: Table, key: str) -> Expression:
    try:
        return parse_expression(table.text(key))
    except ExpressionError as error:
        table.refuse(key, str(error))


def _expressions(table: Table, key: str) -> dict[str, Expression]:
    inner = table.table(key, required=True)
    names = inner.remaining() if inner else ()
    if inner is None or not 0 < len(names) <= NAMES_LIMIT:
        table.refuse(key, f"must name 1 to {NAMES_LIMIT} values")
    return {name: _expression(inner, name) for name in names}


def _named(table: Table, key: str) -> dict[str, Expression]:
    found = _expressions(table, key)
    for name in found:
        if not STEP_PATTERN.fullmatch(name):
            table.refuse(key, f"the name {name!r:.80} must be 1 to 32 lower-case letters, digits or '_'")
    return found


def _values(table: Table, key: str) -> dict[str, float | str | bool]:
    inner = table.table(key)
    found = inner.rest() if inner else {}
    for name, value in found.items():
        if not isinstance(value, (bool, int, float, str)):
            table.refuse(key, f"{name} must be a number, a text or a flag")
    return found


def _earlier(table: Table, key: str, name: str, known: set[str]) -> str:
    if name not in known:
        table.refuse(key, f"{name!r:.80} is no earlier step; a step reads inputs and steps above it")
    return name


def _check_name(table: Table, name: str, key: str = "", *, is_new: bool = True) -> None:
    """Refuse a name, which is that of the table's `key`, a step's, or the key itself, an input's or output's."""
    letters, pattern = ("lower-case letters", STEP_PATTERN) if key else ("letters", TENSOR_PATTERN)
    if not pattern.fullmatch(name) or (is_new and name in RESERVED):
        words = f"must be 1 to 32 {letters}, digits or '_', the first a letter, and no word of expressions"
        table.refuse(key or name, f"the name {name!r:.80} {words}")


def _model_name(table: Table, key: str, value: str) -> str:
    if not NAME_PATTERN.fullmatch(value):
        words = "must be 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
        table.refuse(key, f"{words}, not {value!r:.150}")
    return value
