"""Documents that describe manifests, placements, counters and index lines (OIP v2 and Triton's).

REST sends them as JSON; their keys are the fields of the gRPC messages, which are built from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from gateway import __version__
from gateway.common.domain.expressions import Expression
from gateway.common.domain.manifest import (
    CORRID,
    IMAGE_FORMATS,
    ModelManifest,
    Preprocess,
    SequenceBatching,
    TensorSpec,
)
from gateway.common.domain.pipeline import (
    IMAGE,
    CountStep,
    MergeStep,
    ModelStep,
    Pipeline,
    PipelineInput,
    PythonStep,
    RuleStep,
    SelectStep,
    Step,
    TileStep,
    TrackStep,
    WindowStep,
)
from gateway.common.domain.rights import Rights
from gateway.common.domain.statistics import Duration, Placement, ServableStatistics, StepStatistics
from gateway.common.domain.tensor import Datatype
from gateway.common.domain.text_model import is_generative
from gateway.serving.domain.ports import IndexEntry, Inference, Repository, Statistics
from gateway.serving.frontends.settings import SERVER_NAME

EXTENSIONS = (
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "sequence",
    "statistics",
)
"""Supported extensions by Triton's names.

CUDA shared memory, `trace` and `logging` are not supported, and system shared memory only if it is allowed.
"""

PREPROCESS = "preprocess."
"""Beginning of the name of a parameter in ModelConfig: how images become the input that is named after it, as JSON."""

_IMAGE_FORMATS = {"NCHW": "FORMAT_NCHW", "NHWC": "FORMAT_NHWC"}
_STAGES = ("compute_input", "compute_infer", "compute_output")

Document = dict[str, Any]


def server_metadata(*more: str) -> Document:
    """Return ServerMetadata; `more` are extensions of one protocol, or of one configuration."""
    return {"name": SERVER_NAME, "version": __version__, "extensions": sorted((*EXTENSIONS, *more))}


def described(
    inference: Inference, repository: Repository, model: str, version: str
) -> tuple[ModelManifest, Placement, Sequence[str]]:
    """Return the arguments of the next two functions: a version, or the default one with all that are ready.

    Raises as `describe` does.
    """
    manifest, placement = inference.describe(model, version), inference.placement(model, version)
    return manifest, placement, [manifest.version] if version else repository.versions(model)


def model_metadata(manifest: ModelManifest, placement: Placement, versions: Sequence[str]) -> Document:
    """Return ModelMetadata; shapes include the batch dimension."""
    return {
        "name": manifest.name,
        "versions": list(versions),
        "platform": placement.runtime,
        "inputs": [_metadata_tensor(spec) for spec in manifest.inputs],
        "outputs": [_metadata_tensor(spec) for spec in manifest.outputs],
    }


def model_config(manifest: ModelManifest, placement: Placement, versions: Sequence[str]) -> Document:
    """Return Triton's ModelConfig; dims exclude the batch dimension if max_batch_size > 0.

    A parameter of the manifest with the name of one of the gateway's own is left out.
    """
    rows = placement.max_batch_rows if manifest.batched else 0
    inputs = [
        {
            **_config_tensor(spec, rows),
            "format": _IMAGE_FORMATS.get(spec.layout, "FORMAT_NONE"),
            **({"optional": True} if spec.default is not None else {}),
        }
        for spec in manifest.inputs
    ]
    kind = "KIND_CPU" if placement.accelerator == "cpu" else "KIND_MODEL"
    keys = ("variant", "precision", "accelerator", "reason", "level", "joining", "loop")
    facts = dict(manifest.parameters) | {name: getattr(placement, name) for name in keys}
    facts["signed"] = "true" if placement.signed else "false"
    facts |= {key: value for key in ("provider", "residency") if (value := getattr(placement, key))}
    facts |= {"isolated": "true"} if placement.isolated else {}
    facts |= {PREPROCESS + spec.name: _sent_images(spec.preprocess) for spec in manifest.inputs if spec.preprocess}
    if placement.pipeline is not None:
        images = [each.name for each in placement.pipeline.inputs if each.kind == IMAGE]
        facts |= {PREPROCESS + name: _sent_images(Preprocess(IMAGE_FORMATS)) for name in images}
    config = {
        "name": manifest.name,
        "platform": placement.runtime,
        "backend": placement.runtime,
        "version_policy": {"latest": {"num_versions": len(versions)}},
        "max_batch_size": rows,
        "input": inputs,
        "output": [_config_tensor(spec, rows) for spec in manifest.outputs],
        "instance_group": [{"name": manifest.name, "count": placement.runs, "kind": kind}],
        "parameters": {name: {"string_value": value} for name, value in facts.items()},
    }
    if is_generative(manifest):
        return {**config, "model_transaction_policy": {"decoupled": True}}
    if manifest.sequence is not None:
        return {**config, "sequence_batching": _sequences(manifest.sequence, rows)}
    return {**config, "dynamic_batching": {}} if rows > 1 and not placement.joining else config


def _sequences(sequence: SequenceBatching, rows: int) -> Document:
    """Return Triton's ModelSequenceBatching. Which strategy it names makes no difference to requests."""
    tensors = {name: _config_tensor(spec, rows) for name, spec in sequence.specs.items()}
    controls = []
    for each in sequence.controls:
        spec = sequence.specs[each.input]
        key, value = "data_type", tensors[each.input]["data_type"]
        if each.kind != CORRID:
            key, value = (
                f"{spec.datatype.label.lower()}_false_true",
                np.array(each.false_true, spec.datatype.dtype).tolist(),
            )
        control = {"kind": f"CONTROL_SEQUENCE_{each.kind.upper()}", key: value}
        controls.append({"name": each.input, "control": [control]})
    states = [{**tensors[each.input], "input_name": each.input, "output_name": each.output} for each in sequence.states]
    for state in states:
        del state["name"]
    idle_us = round(sequence.limits.idle_s * 1e6)
    return {"direct": {}, "max_sequence_idle_microseconds": idle_us, "control_input": controls, "state": states}


def model_statistics(counted: Iterable[ServableStatistics]) -> Document:
    """Return ModelStatistics."""
    return {"model_stats": [_servable(servable) for servable in counted]}


def pipeline_steps(pipeline: Pipeline, counted: Mapping[str, StepStatistics]) -> Document:
    """Return the graph of a pipeline, and the counters of its steps as far as they are `counted`.

    `reads` are inputs and earlier steps; `does` is a step's work in the words of its declaration.
    """
    lines = [_line(each.name, IMAGE, pipeline, "decoded") for each in pipeline.inputs if each.kind == IMAGE]
    lines += [_step(step, pipeline) for step in pipeline.steps]
    for line in lines:
        if (counters := counted.get(str(line["name"]))) is not None:
            line.update(asdict(counters), p50_ns=counters.p50_ns)
            del line["recent_ns"]
    outputs = [
        {"name": name, "reads": _reads(pipeline, *expressions.values()), "does": _words(expressions)}
        for name, output in pipeline.outputs.items()
        for expressions in ({"": output} if isinstance(output, Expression) else output,)
    ]
    inputs = [{"name": each.name, "kind": each.kind, "form": _form(each)} for each in pipeline.inputs]
    name, version = pipeline.name, pipeline.version
    return {"name": name, "version": version, "inputs": inputs, "steps": lines, "outputs": outputs}


def _form(each: PipelineInput) -> str:
    return each.kind if each.kind != "tensor" else f"{each.datatype.label}{list(each.shape)}"


def _step(step: Step, pipeline: Pipeline) -> Document:
    """Return a step without counters. Keys of a step that are not set are left out."""
    if isinstance(step, ModelStep):
        does, named, kind = _words(step.inputs), [step.otherwise] if step.otherwise else [], "model"
        model = f"{step.model}@{step.version}" if step.version else step.model
        if isinstance(step, PythonStep):
            made = ", ".join(each.name for each in step.outputs)
            does, model, kind = f"{step.entry} of {step.file}: {does} → {made}", "", "python"
        line = _line(step.name, kind, pipeline, does, *step.inputs.values(), step.when, named=named)
        line |= {"model": model, "when": step.when.text if step.when else "", "else": step.otherwise}
        line |= {"deadline_s": step.deadline_s, "fallback": None if step.fallback is None else dict(step.fallback)}
        return {key: value for key, value in line.items() if value or key in {"reads", "does"} or value == {}}
    if isinstance(step, RuleStep):
        return _line(step.name, "rule", pipeline, _words(step.columns), *step.columns.values())
    if isinstance(step, SelectStep):
        words = [f"where {step.where.text}" if step.where else "", f"top {step.top}" if step.top else ""]
        words.append(f"by {step.by.text}" if step.by else "")
        does = " ".join((step.source, *filter(None, words)))
        return _line(step.name, "select", pipeline, does, step.where, step.by, named=[step.source])
    if isinstance(step, MergeStep):
        does = ", ".join(step.sources) + (f" without overlaps above {step.nms_iou:g}" if step.nms_iou else "")
        return _line(step.name, "merge", pipeline, does, named=step.sources)
    if isinstance(step, TileStep):
        height, width = step.size
        does = f"{step.image.text} in {height} × {width}, overlap {step.overlap:g}"
        return _line(step.name, "tile", pipeline, does, step.image)
    if isinstance(step, TrackStep):
        does = f"{step.source}, scores from {step.high:g} and from {step.low:g}, lost for {step.lost} frames"
        return _line(step.name, "track", pipeline, does, named=[step.source])
    if isinstance(step, CountStep):
        does = f"{step.source} at {', '.join((*step.lines, *step.zones))}"
        return _line(step.name, "count", pipeline, does, named=[step.source, step.image])
    if isinstance(step, WindowStep):
        kind, does = "window", f"the last {step.size} of {step.of.text}, every {step.hop}"
    else:
        kind, does = "match", f"{step.of.text} in {step.gallery}, least {step.least:g}"
    return _line(step.name, kind, pipeline, does, step.of)


def _line(
    name: str, kind: str, pipeline: Pipeline, does: str, *expressions: Expression | None, named: Sequence[str] = ()
) -> Document:
    reads = [each for each in _reads(pipeline, *expressions, named=named) if each != name]
    return {"name": name, "kind": kind, "reads": reads, "does": does}


def _reads(pipeline: Pipeline, *expressions: Expression | None, named: Sequence[str] = ()) -> list[str]:
    """Return the inputs and steps that expressions name, and those that are `named`, in the pipeline's order."""
    found = set(named)
    for each in filter(None, expressions):
        found |= {step for step, _ in each.columns} | set(each.names)
    return [each.name for each in (*pipeline.inputs, *pipeline.steps) if each.name in found]


def _words(expressions: Mapping[str, Expression]) -> str:
    return "; ".join(f"{name} = {each.text}" if name else each.text for name, each in expressions.items())


def visible_statistics(
    statistics: Statistics, rights: Rights, model: str, version: str
) -> Iterator[ServableStatistics]:
    """Yield the counters that a caller may see. Raises as `Statistics.statistics` does."""
    counted = statistics.statistics(model, version)
    return (servable for servable in counted if rights.sees(servable.model))


def repository_index(entries: Iterable[IndexEntry], rights: Rights, *, only_ready: bool) -> list[Document]:
    """Return the lines of RepositoryIndex for the models that a caller may see."""
    return [
        {"name": entry.name, "version": entry.version, "state": entry.state, "reason": entry.reason}
        for entry in entries
        if (entry.state == "READY" or not only_ready) and rights.sees(entry.name)
    ]


def _metadata_tensor(spec: TensorSpec) -> Document:
    return {"name": spec.name, "datatype": spec.datatype.label, "shape": list(spec.shape)}


def _config_tensor(spec: TensorSpec, rows: int) -> Document:
    label = "STRING" if spec.datatype is Datatype.BYTES else spec.datatype.label
    return {"name": spec.name, "data_type": f"TYPE_{label}", "dims": list(spec.shape[1 if rows else 0 :])}


def _servable(servable: ServableStatistics) -> Document:
    stages, cancelled = ("success", "queue", *_STAGES, "cache_hit", "cache_miss"), servable.cancelled
    fail = Duration(servable.fail.count + cancelled.count, servable.fail.ns + cancelled.ns)  # Triton's includes both
    return {
        "name": servable.model,
        "version": servable.version,
        "last_inference": servable.last_inference_ms,
        "inference_count": servable.inferences,
        "execution_count": servable.executions,
        "inference_stats": {
            "fail": _duration(fail),
            **{stage: _duration(getattr(servable, stage)) for stage in stages},
        },
        "response_stats": {"0": {"cancel": _duration(cancelled)}} if cancelled.count else {},
        "batch_stats": [
            {"batch_size": batch.size_rows, **{stage: _duration(getattr(batch, stage)) for stage in _STAGES}}
            for _, batch in sorted(servable.batches.items())
        ],
    }


def _sent_images(preprocess: Preprocess) -> str:
    """Return what a client must know of images: formats and orientation; size and colours of a raw frame."""
    keys = ("frame", "color_matrix", "color_range") if preprocess.frame else ("orientation",)
    return json.dumps({key: getattr(preprocess, key) for key in ("decode", *keys)})


def _duration(duration: Duration) -> Document:
    return {"count": duration.count, "ns": duration.ns}
