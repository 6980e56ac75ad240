"""Strict reader of manifest.toml: unknown keys, wrong types and dangling names are errors.

Source: docs/pages/reference/manifest.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Any, cast

import numpy as np

from gateway.common.domain.audio_toml import check_audio_input, read_audio
from gateway.common.domain.document import Table, read_document
from gateway.common.domain.manifest import (
    CONTROLS,
    CORRID,
    INDEPENDENT,
    LAYOUTS,
    LEVELS,
    OWN_LAYOUTS,
    PRECISIONS,
    ROWS,
    Artifact,
    Binding,
    ControlInput,
    Golden,
    ModelManifest,
    SequenceBatching,
    StateTensors,
    StreamLimits,
    TensorSpec,
    Tolerance,
    Variant,
    Window,
)
from gateway.common.domain.preprocess_toml import check_image_input, read_preprocess
from gateway.common.domain.runtimes import RUNTIMES
from gateway.common.domain.tensor import DATATYPES, Datatype

SCHEMA = 1
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
DIGEST_PATTERN = re.compile(r"[0-9a-f]{64}")
"""SHA-256 digest in the form that this project writes."""
DIMENSION_LIMIT = 2**31 - 1
ARTIFACT_LIMIT_BYTES = 2**40
WINDOW_LIMIT_ROWS = 1_000_000
ROWS_LIMIT = 1_000_000
"""Largest `max_batch_rows`: the rows of one request."""
TENSOR_NAME_LIMIT = 256
DEFAULT_LIMIT = 2.0**53
"""Largest magnitude of `default`: TOML's numbers beyond it are not exact as floats."""

SEQUENCES_LIMIT = 100_000
IDLE_LIMIT_S = 86_400.0
CORRID_TYPES = frozenset({Datatype.UINT64, Datatype.INT64, Datatype.UINT32, Datatype.INT32, Datatype.BYTES})
CONTROL_TYPES = frozenset({Datatype.INT32, Datatype.FP32, Datatype.BOOL})

_FLOATS = frozenset({Datatype.FP16, Datatype.BF16, Datatype.FP32, Datatype.FP64})


def read_manifest(text: str, file: str) -> ModelManifest:
    """Parse a manifest; `file` is named in errors. Raises ConfigurationError (file, table, key, line)."""
    top = read_document(text, file)
    top.integer("schema", low=SCHEMA, high=SCHEMA)
    task, task_options = _task(top)
    manifest = ModelManifest(
        name=_name(top, "name"),
        version=_name(top, "version"),
        task=task,
        task_options=task_options,
        labels=top.texts("labels", ()),
        max_accuracy_loss=top.number("max_accuracy_loss", 0.01, low=0.0, high=1.0),
        inputs=_tensors(top, "input"),
        outputs=_tensors(top, "output"),
        window=_window(top.table("window")),
        golden=golden_table(top.table("golden"), RUNTIMES),
        batch=top.flag("batch", True),
        require=top.text("require", "", among=("", *LEVELS)),
        max_batch_rows=top.integer("max_batch_rows", 0, low=0, high=ROWS_LIMIT),
        rows=top.text("rows", "", among=("", INDEPENDENT)),
        variants=tuple(_variant(table) for table in top.tables("variant")),
        sequence=_sequence(top.table("sequence")),
    )
    top.finish()
    for key, names in (
        ("input", [spec.name for spec in manifest.inputs]),
        ("output", [spec.name for spec in manifest.outputs]),
        ("variant", [variant.name for variant in manifest.variants]),
    ):
        for name in names:
            if names.count(name) > 1:
                top.refuse(key, f"two entries are called {name!r}; names must differ")
    if not manifest.variants:
        top.refuse("variant", "missing; name at least one [[variant]]")
    tensors = {spec.name for spec in manifest.inputs + manifest.outputs}
    for variant in manifest.variants:
        for tensor in variant.bind.keys() - tensors:
            top.refuse(
                "variant",
                f"variant {variant.name!r} binds {tensor!r}, which is neither an input nor an output",
            )
        if variant.adapters.keys() != manifest.variants[0].adapters.keys():
            top.refuse("variant", f"variant {variant.name!r} has other adapters than the first; all must have the same")
        _check_bound_shapes(top, manifest, variant)
    if problem := sequence_problem(manifest):
        top.refuse("sequence", problem)
    return manifest


def _task(top: Table) -> tuple[str, dict[str, Any] | None]:
    """Return the kind of task, and its options if there is a table. The options are read where tasks are known."""
    if not top.holds_table("task"):
        return top.text("task", ""), None
    table = cast("Table", top.table("task"))
    return table.text("kind"), table.rest()


def _name(table: Table, key: str) -> str:
    value = table.text(key)
    if not NAME_PATTERN.fullmatch(value):
        table.refuse(
            key,
            f"must be 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit, not {value!r:.150}",
        )
    return value


def _tensors(top: Table, key: str) -> tuple[TensorSpec, ...]:
    specs = tuple(_tensor(table, key) for table in top.tables(key))
    if not specs:
        top.refuse(key, f"missing; name at least one [[{key}]]")
    return specs


def _tensor(table: Table, role: str) -> TensorSpec:
    shape = table.integers("shape")
    if any(not (dimension == -1 or 0 < dimension <= DIMENSION_LIMIT) for dimension in shape):
        table.refuse("shape", f"dimensions must be positive, or -1 for any size, not {list(shape)}")
    name = table.text("name")
    if not 0 < len(name) <= TENSOR_NAME_LIMIT or not name.isprintable():
        table.refuse("name", f"must be 1 to {TENSOR_NAME_LIMIT} printable characters, not {name!r:.80}")
    datatype = DATATYPES[table.text("datatype", among=tuple(DATATYPES))]
    spec = TensorSpec(
        name=name,
        datatype=datatype,
        shape=shape,
        layout=table.text("layout", "", among=("", *LAYOUTS)),
        finite=table.flag("finite", False) if role == "input" else False,
        preprocess=read_preprocess(table.table("preprocess")) if role == "input" else None,
        audio=read_audio(table.table("audio")) if role == "input" else None,
        postprocess=table.text("postprocess", "", among=("", "softmax")) if role == "output" else "",
        default=_default(table, datatype) if role == "input" else None,
    )
    table.finish()
    if spec.postprocess == "softmax" and spec.datatype not in _FLOATS:
        table.refuse("postprocess", f"softmax gives floats, but the datatype is {spec.datatype.label}")
    if spec.preprocess:
        check_image_input(table, spec, spec.preprocess)
    if spec.audio:
        check_audio_input(table, spec, spec.audio)
    if spec.default is not None:
        _check_default(table, spec, spec.default)
    return spec


def _default(table: Table, datatype: Datatype) -> float | bytes | None:
    if "default" not in table:
        return None
    if datatype is Datatype.BYTES:
        return table.text("default").encode()
    return table.number("default", low=-DEFAULT_LIMIT, high=DEFAULT_LIMIT)


def _check_default(table: Table, spec: TensorSpec, value: float | bytes) -> None:
    """Check the value of an input that a request leaves out; the size of that input must be known."""
    if spec.takes_encoded:
        table.refuse("default", "is for inputs that take tensors of numbers or texts; remove it")
    if ROWS in spec.shape[1:]:
        table.refuse("default", f"needs fixed sizes after the first dimension; write them in shape {list(spec.shape)}")
    if isinstance(value, bytes):
        return
    if spec.datatype not in _FLOATS and not (value.is_integer() and _holds(spec.datatype, int(value))):
        table.refuse("default", f"must be a value of {spec.datatype.label}, not {value:g}")


def _holds(datatype: Datatype, value: int) -> bool:
    if datatype is Datatype.BOOL:
        return value in {0, 1}
    bounds = np.iinfo(datatype.dtype)
    return bool(bounds.min <= value <= bounds.max)


def _window(table: Table | None) -> Window | None:
    if table is None:
        return None
    window = Window(
        channels=table.texts("channels"),
        size_rows=table.integer("size_rows", low=1, high=WINDOW_LIMIT_ROWS),
        hop_rows=table.integer("hop_rows", low=1, high=WINDOW_LIMIT_ROWS),
        rate_hz=table.number("rate_hz", low=1e-6, high=1e6),
    )
    table.finish()
    return window


def stream_limits(table: Table, least_s: float) -> StreamLimits:
    """Take the limits of states out of a table. `least_s`: shortest idle time."""
    keys = table.integer("keys", StreamLimits().keys, low=1, high=SEQUENCES_LIMIT)
    idle_s = table.number("idle_s", StreamLimits().idle_s, low=least_s, high=IDLE_LIMIT_S)
    return StreamLimits(keys, idle_s, table.flag("keep_on_disk", False))


def _sequence(table: Table | None) -> SequenceBatching | None:
    if table is None:
        return None
    states, controls = list[StateTensors](), list[ControlInput]()
    for each in table.tables("state"):
        initial = each.number("initial", 0.0, low=-DEFAULT_LIMIT, high=DEFAULT_LIMIT)
        states.append(StateTensors(each.text("input"), each.text("output"), initial))
        each.finish()
    for each in table.tables("control"):
        kind, values = each.text("kind", among=CONTROLS), (0.0, 1.0)
        if kind != CORRID and "false_true" in each:
            found = each.numbers("false_true")
            if len(found) != 2 or found[0] == found[1]:
                each.refuse("false_true", f"must be two values, for false and for true, not {list(found)}")
            values = found[0], found[1]
        controls.append(ControlInput(each.text("input"), kind, values))
        each.finish()
    limits, keeps = stream_limits(table, 1e-3), table.flag("keep_state", False)
    table.finish()
    return SequenceBatching(tuple(states), tuple(controls), limits, keeps)


def sequence_problem(manifest: ModelManifest) -> str:
    """Return why the tensors of a model do not fit its sequences, or ""."""
    if (sequence := manifest.sequence) is None:
        return ""
    inputs, outputs = ({spec.name: spec for spec in specs} for specs in (manifest.inputs, manifest.outputs))
    given, kinds = [each.output for each in sequence.states], [each.kind for each in sequence.controls]
    taken = [each.input for each in sequence.states] + [each.input for each in sequence.controls]
    if unknown := [name for name in taken if name not in inputs] + [name for name in given if name not in outputs]:
        return f"names {unknown[0]!r:.150}, which the model does not have on that side"
    if twice := [each for names in (taken, given, kinds) for each in names if names.count(each) > 1]:
        return f"names {twice[0]!r:.150} twice"
    if not (inputs.keys() - set(taken) and outputs.keys() - set(given)):
        return "leaves callers no input, or no output"
    problems = [_state_problem(each, inputs[each.input], outputs[each.output]) for each in sequence.states]
    problems += [_control_problem(each, inputs[each.input]) for each in sequence.controls]
    return next(filter(None, problems), "")


def _state_problem(state: StateTensors, before: TensorSpec, after: TensorSpec) -> str:
    sizes = list(zip(before.shape, after.shape, strict=False))
    is_alike = before.datatype is after.datatype and len(before.shape) == len(after.shape)
    if not is_alike or any(ROWS not in pair and pair[0] != pair[1] for pair in sizes):
        forms = [f"{spec.name!r} {spec.datatype.label} {list(spec.shape)}" for spec in (after, before)]
        return f"has {forms[0]} as the next {forms[1]}; they must be alike"
    if before.datatype is Datatype.BYTES or before.takes_encoded:
        return f"has the state {before.name!r} of texts or encoded contents; a state is a tensor of numbers"
    is_held = before.datatype in _FLOATS or (state.initial.is_integer() and _holds(before.datatype, int(state.initial)))
    if not is_held:
        return f"has the initial value {state.initial:g} of {before.name!r}, which is {before.datatype.label}"
    return ""


def _control_problem(control: ControlInput, spec: TensorSpec) -> str:
    types = CORRID_TYPES if control.kind == CORRID else CONTROL_TYPES
    if spec.datatype not in types:
        named = ", ".join(sorted(each.label for each in types))
        return f"has the control {control.kind!r} in {spec.name!r}, which is {spec.datatype.label}, not one of {named}"
    if any(size not in {1, ROWS} for size in spec.shape):
        return f"has the control {spec.name!r} of the shape {list(spec.shape)}; it has one value for each row"
    return ""


def golden_table(table: Table | None, runtimes: Collection[str]) -> Golden | None:
    """Return the golden set that a table declares, with tolerances of `runtimes`; None without a table."""
    if table is None:
        return None
    golden = Golden(_path(table, "file"), _digest(table), _tolerances(table.table("tolerance"), runtimes))
    table.finish()
    return golden


def _tolerances(table: Table | None, runtimes: Collection[str]) -> dict[str, Tolerance]:
    found: dict[str, Tolerance] = {}
    for runtime in table.remaining() if table else ():
        if table is not None and (entry := table.table(runtime)) is not None:
            if runtime not in runtimes:
                table.refuse(runtime, f"unknown runtime; known are {', '.join(runtimes)}")
            found[runtime] = Tolerance(
                agreement=entry.number("agreement", Tolerance().agreement, low=0.0, high=1.0),
                mean_abs=entry.number("mean_abs", Tolerance().mean_abs, low=0.0, high=1e9),
            )
            entry.finish()
    return found


def _variant(table: Table) -> Variant:
    variant = Variant(
        name=_name(table, "name"),
        runtime=table.text("runtime", among=tuple(RUNTIMES)),
        precision=table.text("precision", among=PRECISIONS),
        accuracy=table.number("accuracy", low=0.0, high=1.0) if "accuracy" in table else None,
        accelerators=table.texts("accelerators", ("cpu",)),
        needs=table.texts("needs", ()),
        artifacts=tuple(_artifact(entry) for entry in table.tables("artifacts")),
        bind=_bindings(table.table("bind")),
        signature=table.text("signature", ""),
        adapters=_adapters(table.table("adapters")),
    )
    spec = RUNTIMES.get(variant.runtime)
    if variant.signature and spec and not spec.has_signatures:
        able = ", ".join(name for name, each in RUNTIMES.items() if each.has_signatures)
        table.refuse("signature", f"runtime {variant.runtime} has none; remove it (files of {able} have them)")
    if not variant.artifacts:
        table.refuse("artifacts", "missing; name at least one file with path, sha256 and bytes")
    paths = [artifact.path for artifact in variant.artifacts]
    if variant.adapters and not (spec and spec.has_adapters):
        able = ", ".join(name for name, each in RUNTIMES.items() if each.has_adapters)
        table.refuse("adapters", f"runtime {variant.runtime} has none; remove the table (models of {able} have them)")
    for name, path in variant.adapters.items():
        if path not in paths[1:]:
            table.refuse("adapters", f"{name} is {path!r:.200}, which must be one of the artifacts, behind the first")
    table.finish()
    return variant


def _adapters(table: Table | None) -> dict[str, str]:
    if table is None:
        return {}
    found = {name: _path(table, name) for name in table.remaining()}
    for name in found:
        if not NAME_PATTERN.fullmatch(name):
            table.refuse(name, "must be 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit")
    table.finish()
    return found


def _artifact(table: Table) -> Artifact:
    artifact = Artifact(_path(table, "path"), _digest(table), table.integer("bytes", low=0, high=ARTIFACT_LIMIT_BYTES))
    table.finish()
    return artifact


def _bindings(table: Table | None) -> dict[str, Binding]:
    found: dict[str, Binding] = {}
    for tensor in table.remaining() if table else ():
        if table is not None and (entry := table.table(tensor)) is not None:
            layout = entry.text("layout", "", among=("", *OWN_LAYOUTS))
            shape = entry.integers("shape") if "shape" in entry else None
            found[tensor] = Binding(entry.text("name"), layout, shape)
            entry.finish()
    return found


def _path(table: Table, key: str) -> str:
    value = table.text(key)
    path = PurePosixPath(value)
    if not value or path.is_absolute() or ".." in path.parts or "\\" in value or "\0" in value:
        table.refuse(key, f"must be a path inside the model's folder, not {value!r:.150}")
    return value


def _digest(table: Table) -> str:
    value = table.text("sha256")
    if not DIGEST_PATTERN.fullmatch(value):
        table.refuse("sha256", f"must be 64 lower-case hex digits, not {value!r:.80}")
    return value


def _check_bound_shapes(top: Table, manifest: ModelManifest, variant: Variant) -> None:
    """Check that a tensor has as many elements in the variant's own shape, and open dimensions in first place only."""
    for spec in manifest.inputs + manifest.outputs:
        own = variant.binding(spec.name).shape
        if own is None:
            continue
        if not _as_many_elements(spec.shape, own):
            problem = f"variant {variant.name!r} binds {spec.name!r} {list(spec.shape)} to the shape {list(own)}: "
            top.refuse("variant", f"{problem}both need as many elements, and only the first dimension may be -1")


def _as_many_elements(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Return True if both shapes are open in first place or nowhere, and hold as many elements."""
    if (shape[:1] == (ROWS,)) != (other[:1] == (ROWS,)):
        return False
    fixed = [each[1:] if each[:1] == (ROWS,) else each for each in (shape, other)]
    return all(size > 0 for each in fixed for size in each) and math.prod(fixed[0]) == math.prod(fixed[1])
