"""TOML of a manifest in the order of its reference (docs/pages/reference/manifest.md), with comments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gateway.common.domain.manifest import (
    CORRID,
    Golden,
    ModelManifest,
    Preprocess,
    SequenceBatching,
    TensorSpec,
    Variant,
    Window,
)
from gateway.common.domain.manifest_toml import SCHEMA
from gateway.workshop.making.toml_text import artifact_values, toml_comment, toml_lines, toml_table, with_bindings

Notes = Mapping[str, str]
"""Comments by place: a key of the top level, `task.KEY`, `input.NAME.KEY`, `input.NAME.preprocess.KEY`,
`output.NAME.KEY`, `variant.NAME.KEY`, and `inputs` for a text behind the inputs."""


def manifest_text(manifest: ModelManifest, notes: Notes | None = None) -> str:
    """Return the TOML of a manifest. The comment of a key is on the lines before it."""
    notes = notes or {}
    values: dict[str, Any] = {"schema": SCHEMA, "name": manifest.name, "version": manifest.version}
    values |= {"task": manifest.task} if manifest.task_options is None else {}
    values |= {"labels": manifest.labels, "max_accuracy_loss": manifest.max_accuracy_loss}
    if manifest.batch is False or "batch" in notes:
        values["batch"] = manifest.batch is not False
    values |= {key: value for key in ("max_batch_rows", "rows", "require") if (value := getattr(manifest, key))}
    text = "".join(toml_lines(values, notes, ""))
    blocks = [text if manifest.task_options is None else f"{text}\n{_task(manifest, manifest.task_options, notes)}"]
    blocks += [_input(spec, notes) for spec in manifest.inputs]
    blocks += [_output(spec, notes) for spec in manifest.outputs]
    blocks += [toml_comment(notes["inputs"])] if "inputs" in notes else []
    blocks += [_window(manifest.window)] if manifest.window else []
    blocks += _sequence(manifest.sequence) if manifest.sequence else []
    blocks += golden_blocks(manifest.golden) if manifest.golden else []
    blocks += [variant_text(variant, notes) for variant in manifest.variants]
    return "\n".join(blocks)


def _sequence(sequence: SequenceBatching) -> list[str]:
    limits = {**asdict(sequence.limits), "keep_state": sequence.keep_state}
    states = [toml_table("[[sequence.state]]", asdict(state)) for state in sequence.states]
    values = [asdict(control) for control in sequence.controls]
    for each in values:
        if each["kind"] == CORRID:
            del each["false_true"]
    controls = [toml_table("[[sequence.control]]", each) for each in values]
    return [toml_table("[sequence]", limits), *states, *controls]


def golden_blocks(golden: Golden) -> list[str]:
    """Return the TOML of the golden set and its tolerances."""
    tolerances = {runtime: asdict(tolerance) for runtime, tolerance in golden.tolerance.items()}
    table = toml_table("[golden]", {"file": golden.file, "sha256": golden.sha256})
    return [table, toml_table("[golden.tolerance]", tolerances)] if tolerances else [table]


def variant_text(variant: Variant, notes: Notes | None = None) -> str:
    """Return the TOML of one variant."""
    values: dict[str, Any] = {"name": variant.name, "runtime": variant.runtime, "precision": variant.precision}
    if variant.accuracy is not None:
        values["accuracy"] = variant.accuracy
    if variant.signature:
        values["signature"] = variant.signature
    values |= {"accelerators": variant.accelerators, "needs": variant.needs}
    values["artifacts"] = artifact_values(variant.artifacts)
    text = with_bindings(toml_table("[[variant]]", values, notes, f"variant.{variant.name}."), variant.bind)
    return f"{text}\n{toml_table('[variant.adapters]', variant.adapters)}" if variant.adapters else text


def _task(manifest: ModelManifest, options: Mapping[str, Any], notes: Notes) -> str:
    note = toml_comment(notes["task"]) if "task" in notes else ""
    return f"{note}{toml_table('[task]', {'kind': manifest.task, **options}, notes, 'task.')}"


def _input(spec: TensorSpec, notes: Notes) -> str:
    values = _tensor(spec) | ({"finite": True} if spec.finite else {})
    default = spec.default.decode() if isinstance(spec.default, bytes) else spec.default
    values |= {} if default is None else {"default": default}
    values |= {"layout": spec.layout} if spec.layout else {}
    text = toml_table("[[input]]", values, notes, f"input.{spec.name}.")
    if spec.preprocess is None:
        return text
    prefix = f"input.{spec.name}.preprocess."
    return f"{text}\n{toml_table('[input.preprocess]', _preprocess(spec.preprocess), notes, prefix)}"


def _output(spec: TensorSpec, notes: Notes) -> str:
    values = _tensor(spec) | ({"layout": spec.layout} if spec.layout else {})
    values |= (
        {"postprocess": spec.postprocess} if spec.postprocess or f"output.{spec.name}.postprocess" in notes else {}
    )
    return toml_table("[[output]]", values, notes, f"output.{spec.name}.")


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype.label, "shape": spec.shape}


def _preprocess(preprocess: Preprocess) -> dict[str, Any]:
    resize = {"resize": preprocess.resize} if preprocess.resize else {}
    values: dict[str, Any] = {"decode": preprocess.decode, "color": preprocess.color, **resize, "fit": preprocess.fit}
    values |= {"scale": preprocess.scale, "mean": preprocess.mean}
    usual = Preprocess(preprocess.decode)
    of_fits = ("std", "pad_value", "align", "crop_share", "resample")
    others = (*of_fits, "frame", "color_matrix", "color_range", "orientation")
    return values | {key: getattr(preprocess, key) for key in others if getattr(preprocess, key) != getattr(usual, key)}


def _window(window: Window) -> str:
    rate = int(window.rate_hz) if window.rate_hz.is_integer() else window.rate_hz
    return toml_table("[window]", asdict(window) | {"rate_hz": rate})
