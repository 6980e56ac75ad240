"""Draft of a pipeline from the manifests of its models. Pure.

A model that takes images follows a detector by the parts of the image that its boxes show. Another one follows the
model before it if its only input takes one of that one's outputs. Otherwise it reads the request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.manifest_toml import SCHEMA
from gateway.common.domain.pipeline import IMAGE, RESERVED, TEXT
from gateway.common.domain.tensor import Datatype
from gateway.serving.pipelines.columns import NUMBER
from gateway.serving.pipelines.runs import column_of, finds_objects, may_fit, row_shape
from gateway.serving.tasks.interpreter import RESULT
from gateway.workshop.making.toml_text import toml_comment, toml_lines, toml_table

RESULTS = ("label", "score", "text", "embedding", "anomalous", "values", "forecast")
"""Columns of tasks that answers have. A model without them answers with its own outputs."""
NAME_CHARS = 24
SCORE, TOP, MARGIN = 0.5, 20, 1.1
"""Draft of what is kept of the objects that a detector finds, and how much wider than its box a part is cut."""


@dataclass(slots=True)
class _DraftedStep:
    """Step: `rows` is the step whose rows it runs for, "" those of the request. `is_read`: a later one reads it."""

    name: str
    manifest: ModelManifest
    rows: str
    is_read: bool = False


@dataclass(slots=True)
class _Draft:
    inputs: dict[str, str] = field(default_factory=dict)
    steps: list[_DraftedStep] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)
    """Step that keeps the best objects of a detector, by the detector's."""

    def unused(self, wanted: str) -> str:
        """Return a name that no input and no step has."""
        plain = re.sub("[^a-z0-9_]", "_", wanted.lower())
        plain = (plain if plain[:1].isalpha() else f"m{plain}")[:NAME_CHARS]
        names = {*self.inputs, *(step.name for step in self.steps), *self.kept.values(), *RESERVED}
        numbered = (f"{plain}_{number}" for number in range(2, len(names) + 3))
        return next(name for name in (plain, *numbered) if name not in names)


def draft_pipeline(name: str, version: str, models: Sequence[tuple[str, ModelManifest]]) -> str:
    """Return the text of a pipeline that runs models (name or name@version), each with what callers see of it.

    Raises ConfigurationError if a model takes what a pipeline cannot give.
    """
    draft = _Draft()
    for model, manifest in models:
        _add(draft, model, manifest)
    head = "".join(toml_lines({"schema": SCHEMA, "name": name, "version": version}))
    note = toml_comment("Drafted from its models: read it, and change what does not fit.")
    inputs = toml_table("[input]", draft.inputs)
    return "\n".join((note + head, inputs, *draft.parts, _outputs(draft)))


def _add(draft: _Draft, model: str, manifest: ModelManifest) -> None:
    needed = [spec for spec in manifest.inputs if spec.default is None] or list(manifest.inputs[:1])
    only, before = needed[0] if len(needed) == 1 else None, draft.steps[-1] if draft.steps else None
    shows = only is not None and only.preprocess is not None and not only.preprocess.frame
    finder = next((step for step in reversed(draft.steps) if finds_objects(step.manifest)), None)
    values: dict[str, Any] = {"name": draft.unused(model.partition("@")[0]), "model": model}
    rows, note = "", "reads the request"
    if shows and finder is not None:
        if finder.name not in draft.kept:
            _keep_best(draft, finder)
        rows = draft.kept[finder.name]
        image = next(each for each, kind in draft.inputs.items() if kind == IMAGE)
        values["of"] = f"crop({image}, {rows}.box, {MARGIN})"
        note = f"runs for each object: the part of the image in its box, {MARGIN} times as wide and high"
    elif only is not None and before is not None and (column := _fitting(before.manifest, only, manifest)):
        before.is_read, rows = True, before.rows
        values["of"] = f"{before.name}.{column}"
        note = f"reads {column}, an output of the step above"
    elif only is not None:
        values["of"] = _input(draft, only, manifest, values["name"])
    else:
        values["inputs"] = {spec.name: _input(draft, spec, manifest, values["name"]) for spec in needed}
    draft.steps.append(_DraftedStep(values["name"], manifest, rows))
    draft.parts.append(toml_comment(f"{values['name']} {note}") + toml_table("[[step]]", values))


def _keep_best(draft: _Draft, finder: _DraftedStep) -> None:
    name = draft.kept[finder.name] = draft.unused("best")
    values = {"name": name, "select": finder.name, "where": f"score > {SCORE}", "by": "score", "top": TOP}
    note = f"{name} keeps the objects that the steps below work on"
    if finder.manifest.labels:
        note += f"; some labels only: label in {list(finder.manifest.labels[:2])} and score > {SCORE}"
    draft.parts.append(toml_comment(note) + toml_table("[[step]]", values))


def _fitting(before: ModelManifest, wanted: TensorSpec, manifest: ModelManifest) -> str:
    """Return the output of the model before that an input takes; "" if there is none."""
    shape = row_shape(wanted, has_rows=manifest.batched)
    for spec in before.outputs:
        made = None if spec.name in before.answered or not _is_name(spec.name) else column_of(before, spec.name)
        if made and made[1].kind == NUMBER and shape and may_fit(made[1].shape, shape):
            return spec.name
    return ""


def _input(draft: _Draft, spec: TensorSpec, manifest: ModelManifest, step: str) -> str:
    """Return the name of an input of the pipeline for an input of a model; equal ones are one."""
    shape, kind = row_shape(spec, has_rows=manifest.batched), IMAGE
    if spec.preprocess is None or spec.preprocess.frame:
        if spec.datatype is Datatype.BYTES and shape not in {(), (1,)}:
            problem = f"takes several texts for a row as '{spec.name}', and a pipeline gives one"
            raise ConfigurationError(problem, file=manifest.name)
        kind = TEXT if spec.datatype is Datatype.BYTES else f"{spec.datatype.label}{list(shape)}"
    wanted = IMAGE if kind == IMAGE else spec.name
    if draft.inputs.get(wanted) == kind:
        return wanted
    name = wanted if _is_name(wanted) and wanted not in draft.inputs else draft.unused(f"{step}_{wanted}")
    draft.inputs[name] = kind
    return name


def _outputs(draft: _Draft) -> str:
    """Return the table of outputs: what each step says of an object together, and each other result by itself."""
    outputs = dict[str, Any]()
    for step in draft.steps:
        if finds_objects(step.manifest):
            rows = draft.kept.get(step.name, step.name)
            outputs[f"{step.name}_objects"] = {key: f"{rows}.{key}" for key in ("box", "label", "score")}
    for step in draft.steps:
        if step.is_read or finds_objects(step.manifest):
            continue
        found = {f"{step.name}_{column}": f"{step.name}.{column}" for column in _results(step.manifest)}
        finder = next((name for name, rows in draft.kept.items() if rows == step.rows), "")
        outputs |= found if not finder else {}
        if finder:
            outputs[f"{finder}_objects"] |= found
    lines = "".join(toml_lines({name[:32]: value for name, value in outputs.items()}))
    return f"[output]\n{lines}"


def _results(manifest: ModelManifest) -> list[str]:
    """Return the columns that an answer has. Raises ConfigurationError if none has a name in expressions."""
    found = [name for name in RESULTS if manifest.answered and column_of(manifest, name)]
    found = found or [spec.name for spec in manifest.outputs if spec.name != RESULT and _is_name(spec.name)]
    if not found:
        names = ", ".join(spec.name for spec in manifest.outputs)
        problem = f"has the outputs {names}, which are no names in expressions; bind them to others in its manifest"
        raise ConfigurationError(problem, file=manifest.name)
    return found


def _is_name(text: str) -> bool:
    return text.isidentifier() and text.isascii() and not iskeyword(text) and text not in RESERVED and len(text) <= 32
