"""TOML of a release (docs/pages/reference/manifest.md) that was imported."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.domain.manifest import Artifact, Binding, TensorSpec
from gateway.domain.manifest_toml import SCHEMA
from gateway.importing.imported import ImportedModel, ImportedVariant

Artifacts = Mapping[str, Sequence[Artifact]]
"""Files of a release by the name of their variant, with paths relative to its folder."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def manifest_text(model: ImportedModel, artifacts: Artifacts, origin: str) -> str:
    """Return the TOML of a release; `origin` is the source, for the comment in the first line."""
    blocks = [f"# Imported from {json.dumps(origin)[1:-1]}\n" + "".join(_lines(_head(model)))]
    if model.task_options is not None:
        blocks.append(_table("[task]", {"kind": model.task, **model.task_options}))
    for spec in model.inputs:
        blocks.append(_table("[[input]]", _tensor(spec)))
        if spec.name in model.preprocess:
            blocks.append(_table("[input.preprocess]", model.preprocess[spec.name]))
    blocks += [_table("[[output]]", _tensor(spec)) for spec in model.outputs]
    blocks += [_variant(variant, artifacts[variant.name]) for variant in model.variants]
    return "\n".join(blocks)


def toml_value(value: Any) -> str:
    """Return a TOML value: text, number, boolean, list or inline table.

    JSON writes text, finite numbers and booleans as TOML does, except the delete character.
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        if value and isinstance(value[0], Mapping):
            return "[\n" + "".join(f"    {toml_value(each)},\n" for each in value) + "]"
        return f"[{', '.join(map(toml_value, value))}]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")


def _head(model: ImportedModel) -> dict[str, Any]:
    values: dict[str, Any] = {"schema": SCHEMA, "name": model.name, "version": model.version}
    if model.task_options is None and model.task:
        values["task"] = model.task
    if model.labels:
        values["labels"] = model.labels
    if not model.batch:
        values["batch"] = False
    if model.max_batch_rows:
        values["max_batch_rows"] = model.max_batch_rows
    return values


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    values: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype.label, "shape": spec.shape}
    if spec.layout:
        values["layout"] = spec.layout
    if spec.postprocess:
        values["postprocess"] = spec.postprocess
    return values


def _variant(variant: ImportedVariant, artifacts: Sequence[Artifact]) -> str:
    values = {"name": variant.name, "runtime": variant.runtime, "precision": variant.precision}
    files = [{"path": each.path, "sha256": each.sha256, "bytes": each.size_bytes} for each in artifacts]
    text = _table("[[variant]]", {**values, "accelerators": variant.accelerators, "artifacts": files})
    if not variant.bind:
        return text
    return f"{text}\n{_table('[variant.bind]', {name: _binding(own) for name, own in variant.bind.items()})}"


def _binding(own: Binding) -> dict[str, Any]:
    values: dict[str, Any] = {"name": own.name}
    if own.layout:
        values["layout"] = own.layout
    if own.shape is not None:
        values["shape"] = own.shape
    return values


def _table(header: str, values: Mapping[str, Any]) -> str:
    return f"{header}\n{''.join(_lines(values))}"


def _lines(values: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {toml_value(value)}\n" for key, value in values.items())


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else toml_value(key)
