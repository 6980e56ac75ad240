"""Source `triton`: a model repository of Triton, or the folder of one of its models.

Source: "Model Repository" and "Model Configuration" in the documentation of Triton's server. `config.pbtxt` is read as
for bare models (`gateway.common.domain.triton_config`). A folder without one is described by its model file alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.common.domain.errors import UnofferedError
from gateway.common.domain.manifest import ModelManifest, Variant
from gateway.common.domain.triton_config import EnsembleStep, TritonConfig, read_config, read_ensemble, read_python
from gateway.common.domain.triton_manifest import described
from gateway.workshop.importing.graphs import (
    StepGraph,
    StepNode,
    imported_pipeline,
    row_kind,
    row_shape,
    with_absent,
)
from gateway.workshop.importing.imported import (
    ImportedModel,
    ImportedPipeline,
    ImportedSource,
    ImportFinding,
    SkippedModel,
    check_name,
    fitting_labels,
    left_out,
    precision_finding,
    taken,
    variant_of,
)
from gateway.workshop.importing.source import Documents, SourceModel, joined
from gateway.workshop.importing.triton_python import python_models
from gateway.workshop.importing.versions import build_versions, numbered_versions, refused_versions, sorted_out

CONFIG = "config.pbtxt"
_NOT_APPLIED = " is not applied: "


def is_triton(documents: Documents) -> bool:
    """Return True if the source, or a folder directly in it, holds a config.pbtxt."""
    return CONFIG in documents.files or any(joined(name, CONFIG) in documents.files for name in documents.folders())


def read_triton(documents: Documents) -> ImportedSource:
    """Return the models of a repository.

    Raises ConfigurationError with the line for text that is damaged and for unknown fields.
    """
    is_one = CONFIG in documents.files
    folders = {documents.name: ""} if is_one else {name: name for name in documents.folders()}
    found = [each for name, folder in folders.items() for each in _versions(documents, name, folder)]
    return with_absent(ImportedSource(*sorted_out(found)))


def _versions(
    documents: Documents, name: str, folder: str
) -> Iterator[ImportedModel | ImportedPipeline | SkippedModel]:
    path = joined(folder, CONFIG)
    check_name(name, "name", folder)
    try:
        ensemble = read_ensemble(documents.text(path), path, name) if path in documents.files else None
        if ensemble is not None:
            yield _pipeline(name, numbered_versions(documents, folder).served, *ensemble)
            return
        python = read_python(documents.text(path), path, name) if path in documents.files else None
        if python is not None:
            yield from python_models(documents, name, folder, python)
            return
        config = read_config(documents.text(path), path, name) if path in documents.files else TritonConfig(path)
    except UnofferedError as error:
        yield SkippedModel(name, "", str(error))
        return
    labels = _labels(documents, folder, config)
    versions = numbered_versions(documents, folder)
    unserved = config.unserved(versions.served)
    policy = _policy(config)
    if not versions.served:
        yield SkippedModel(name, "", "holds no folder of a version, such as 1, with a model file; add it")

    def build(version: str, model: SourceModel) -> ImportedModel:
        return _release((name, version), model, config, labels, policy)

    served = [version for version in versions.served if version not in unserved]
    yield from build_versions(documents, name, folder, served, build, wanted=config.model_filename)
    yield from refused_versions(name, versions)
    for version, problem in config.missing(versions.served).items():
        yield SkippedModel(name, version, problem)


def _pipeline(
    name: str, versions: tuple[str, ...], config: TritonConfig, steps: Sequence[EnsembleStep]
) -> ImportedPipeline:
    """Return an ensemble as a pipeline. Raises UnofferedError for what pipelines cannot do."""
    findings = [left_out(*remark.split(_NOT_APPLIED)) for remark in config.remarks]
    findings += [
        left_out(key, "a pipeline has none") for key in ("parameters", "label_filename") if getattr(config, key)
    ]
    if config.batched:
        findings.append(left_out("max_batch_size", "a pipeline takes as many rows as [limits] max_batch_rows allows"))
    inputs = dict[str, str]()
    for each in config.inputs:
        what = f"input {each.name}"
        if each.optional or each.reshape is not None:
            problem = f"{what} is {'optional' if each.optional else 'reshaped'}; a pipeline takes what its steps take"
            raise UnofferedError(problem, file=config.file)
        shape = each.dims if config.batched else row_shape(each.dims, what, findings)
        inputs[each.name] = row_kind(each.datatype, shape, what, config.file)
    names = [f"{step.model}_{place + 1}" for place, step in enumerate(steps)]  # a model may run twice
    made = {name: ("", name) for name in inputs}
    for node, step in zip(names, steps, strict=True):
        made |= {tensor: (node, output) for output, tensor in step.outputs.items()}
    nodes = [
        StepNode(
            node, step.model, step.version, {key: made.get(tensor, ("", tensor)) for key, tensor in step.inputs.items()}
        )
        for node, step in zip(names, steps, strict=True)
    ]
    outputs = {each.name: made.get(each.name, ("", each.name)) for each in config.outputs}
    version = versions[-1] if versions else "1"
    return imported_pipeline(StepGraph(name, version, inputs, nodes, outputs, config.file, tuple(findings)))


def _labels(documents: Documents, folder: str, config: TritonConfig) -> tuple[str, ...]:
    if not config.label_filename:
        return ()
    text = documents.text(joined(folder, config.label_filename))
    return tuple(line.strip() for line in text.splitlines())


def _policy(config: TritonConfig) -> ImportFinding:
    policy = config.versions
    if policy.specific:
        return taken("version_policy", f"the versions {', '.join(policy.specific)}")
    if policy.latest:
        return taken("version_policy", f"the latest {policy.latest}; the others are not imported")
    return taken("version_policy", "all versions; without this field Triton serves the newest only")


def _release(
    release: tuple[str, str],
    model: SourceModel,
    config: TritonConfig,
    labels: tuple[str, ...],
    policy: ImportFinding,
) -> ImportedModel:
    config.check_runtime(model.runtime)
    signature, own = model.tensors(), variant_of(model)
    bare = Variant(own.name, own.runtime, own.precision, ())
    bare_manifest = ModelManifest(*release, signature.inputs, signature.outputs, (bare,))
    manifest = described(bare_manifest, config, labels, signature.optional)
    known, label_findings = fitting_labels(labels, manifest.outputs, config.label_filename or "label_filename")
    findings = (policy, *_facts(config, manifest), *(label_findings if labels else ()), *precision_finding(model))
    return ImportedModel(
        *release,
        manifest.inputs,
        manifest.outputs,
        (variant_of(model, bind=manifest.variants[0].bind),),
        labels=known,
        batch=manifest.batch is not False,
        max_batch_rows=manifest.max_batch_rows,
        sequence=manifest.sequence,
        findings=findings,
    )


def _facts(config: TritonConfig, manifest: ModelManifest) -> Iterator[ImportFinding]:
    if config.runtime:
        yield taken("platform, backend", config.runtime)
    if config.max_batch_size is not None:
        rows = f"at most {config.max_batch_size} rows" if config.max_batch_size else "requests have no rows"
        yield taken("max_batch_size", rows)
    for spec in (*manifest.inputs, *manifest.outputs):
        yield taken(spec.name, f"{spec.datatype.label} {list(spec.shape)} {spec.layout}".rstrip())
    if config.sequence is not None:
        named = [f"state {one.input} ← {one.output}" for one in config.sequence.states]
        named += [f"{one.kind} {one.input}" for one in config.sequence.controls]
        yield taken("sequence_batching", ", ".join((*named, f"idle for {config.sequence.limits.idle_s:g} s at most")))
    if config.parameters:
        yield left_out("parameters", "a manifest has none; ModelConfig repeats those of a config.pbtxt that is served")
    if config.runs:
        yield left_out("instance_group", "a manifest has none: trials decide; a config.pbtxt that is served sets it")
    for remark in config.remarks:
        what, _, why = remark.partition(_NOT_APPLIED)
        yield left_out(what, why)
