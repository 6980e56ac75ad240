"""Reader of `pipeline.toml` (docs/pages/reference/pipeline.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.common.domain.document import Table, read_document
from gateway.common.domain.expressions import Expression, ExpressionError, parse_expression
from gateway.common.domain.manifest_toml import (
    DIMENSION_LIMIT,
    NAME_PATTERN,
    SCHEMA,
    WINDOW_LIMIT_ROWS,
    golden_table,
    stream_limits,
)
from gateway.common.domain.pipeline import (
    ANSWER_KINDS,
    CODE_PATTERN,
    IMAGE,
    PIPELINE,
    PYTHON_MIB,
    RESERVED,
    ROWS_LIMIT,
    RUNTIME,
    TEXT,
    CountStep,
    MatchStep,
    MergeStep,
    ModelStep,
    Output,
    Pipeline,
    PipelineInput,
    Point,
    PythonStep,
    RuleStep,
    SelectStep,
    Step,
    TextQuestion,
    TileStep,
    TrackStep,
    WindowStep,
)
from gateway.common.domain.tensor import DATATYPES
from gateway.common.domain.text_model import REQUEST, TOKENS_LIMIT

STEPS_LIMIT = 64
NAMES_LIMIT = 64
"""Most inputs, outputs, or columns of a rule."""
SIDE_LIMIT = 8_192
"""Largest side of a tile, in pixels."""
DEADLINE_LIMIT_S = 3_600.0
LOST_LIMIT = 10_000
"""Most frames that an object may be lost."""
ZONE_POINTS_LIMIT = 64
ANSWER_TOKENS = 128
"""Longest answer to a step that asks, unless it states another."""
SYSTEM_LIMIT_CHARS = 16_384
"""Longest instruction to a language model, and longest of the texts that a field of its answer may be."""
STEP_PATTERN = re.compile(r"[a-z][a-z0-9_]{0,31}")
TENSOR_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,31}")
"""Names of inputs and outputs, which clients of other servers may know in capitals."""
_TENSOR = re.compile(r"([A-Z0-9]+)\[([0-9, -]*)\]")
KINDS = ("model", "rule", "select", "merge", "tile", "match", "track", "count", "window", "python")
"""Keys that name the kind of a step."""


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
    question = _question(table) if "ask" in table else None
    keys = _run_keys(table, name, known, asks=question is not None)
    return ModelStep(model=_model_name(table, "model", model), version=of_version, question=question, **keys)


def _question(table: Table) -> TextQuestion:
    for key in ("of", "inputs"):
        if key in table:
            table.refuse(key, "a step has one of 'ask', 'of' and 'inputs'; remove the others")
    system, adapter = table.text("system", ""), table.text("adapter", "")
    if len(system) > SYSTEM_LIMIT_CHARS:
        table.refuse("system", f"has {len(system)} characters, at most {SYSTEM_LIMIT_CHARS} are read; shorten it")
    answer, inner = dict[str, str | tuple[str, ...]](), table.table("answer")
    for name in inner.remaining() if inner else ():
        if inner is None:
            break
        _check_name(inner, name, name)
        kind = inner.take(name)
        is_list = isinstance(kind, list) and all(isinstance(each, str) for each in kind) and len(set(kind)) == len(kind)
        if kind not in ANSWER_KINDS and not (is_list and 0 < len(kind) <= NAMES_LIMIT):
            words = f"must be {', '.join(map(repr, ANSWER_KINDS))}, or a list of 1 to {NAMES_LIMIT} different texts"
            table.refuse("answer", f"{name} {words}")
        answer[name] = tuple(kind) if isinstance(kind, list) else kind
    if len(answer) > NAMES_LIMIT or sum(len(each) for kind in answer.values() for each in kind) > SYSTEM_LIMIT_CHARS:
        table.refuse("answer", f"has more than {NAMES_LIMIT} fields, or {SYSTEM_LIMIT_CHARS} characters; shorten it")
    return TextQuestion(system, table.integer("max_tokens", ANSWER_TOKENS, low=1, high=TOKENS_LIMIT), adapter, answer)


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


def _run_keys(table: Table, name: str, known: set[str], *, asks: bool = False) -> dict[str, Any]:
    """Read what steps with a model and with Python code have in common."""
    if asks:
        inputs = {REQUEST: _expression(table, "ask")}
    else:
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
