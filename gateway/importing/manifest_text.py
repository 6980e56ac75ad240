"""TOML of a release (docs/pages/reference/manifest.md) that was imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.domain.manifest import Artifact, TensorSpec
from gateway.domain.manifest_toml import SCHEMA
from gateway.domain.toml_text import artifact_values, toml_lines, toml_table, with_bindings
from gateway.importing.imported import ImportedModel, ImportedVariant

Artifacts = Mapping[str, Sequence[Artifact]]
"""Files of a release by the name of their variant, with paths relative to its folder."""


def manifest_text(model: ImportedModel, artifacts: Artifacts, origin: str) -> str:
    """Return the TOML of a release; `origin` is the source, for the comment in the first line."""
    blocks = [f"# Imported from {json.dumps(origin)[1:-1]}\n" + "".join(toml_lines(_head(model)))]
    if model.task_options is not None:
        blocks.append(toml_table("[task]", {"kind": model.task, **model.task_options}))
    for spec in model.inputs:
        blocks.append(toml_table("[[input]]", _tensor(spec)))
        if spec.name in model.preprocess:
            blocks.append(toml_table("[input.preprocess]", model.preprocess[spec.name]))
    blocks += [toml_table("[[output]]", _tensor(spec)) for spec in model.outputs]
    blocks += [_variant(variant, artifacts[variant.name]) for variant in model.variants]
    return "\n".join(blocks)


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
    if spec.default is not None:
        values["default"] = spec.default
    if spec.layout:
        values["layout"] = spec.layout
    if spec.postprocess:
        values["postprocess"] = spec.postprocess
    return values


def _variant(variant: ImportedVariant, artifacts: Sequence[Artifact]) -> str:
    values: dict[str, Any] = {"name": variant.name, "runtime": variant.runtime, "precision": variant.precision}
    values |= {"accelerators": variant.accelerators, "artifacts": artifact_values(artifacts)}
    return with_bindings(toml_table("[[variant]]", values), variant.bind)
