"""Writing of imported releases: each is complete or absent, and nothing existing is replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gateway.common.domain.document import Table
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact, ModelManifest, Variant
from gateway.common.domain.manifest_toml import SCHEMA, read_manifest
from gateway.common.domain.pipeline import PIPELINE
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.preprocess_toml import read_preprocess
from gateway.serving.store.references import read_artifact
from gateway.serving.store.releases import MANIFEST
from gateway.serving.store.staging import check_absent, copy_file, staged_folder, write_text
from gateway.serving.tasks.catalog import task_of
from gateway.workshop.importing.imported import ImportedModel, ImportedPipeline, ImportedVariant, left_out
from gateway.workshop.making.manifest_text import manifest_text
from gateway.workshop.making.toml_text import toml_lines

Artifacts = Mapping[str, Sequence[Artifact]]
"""Files of a release by the name of their variant, with paths relative to its folder."""


UNKNOWN = Artifact("model", "0" * 64, 0)
"""Artifact of a manifest that is read before its files are copied."""


def settled(model: ImportedModel) -> ImportedModel:
    """Return a model whose manifest this version of the gateway reads.

    A task that it does not know, or that the outputs do not fit, is written as text and reported. Raises
    ConfigurationError for every other fault.
    """
    artifacts = {variant.name: (UNKNOWN,) for variant in model.variants}
    place = f"{model.name}/{model.version}/{MANIFEST}"
    manifest = read_manifest(release_text(model, artifacts, ""), place)
    try:
        task_of(manifest)
    except ConfigurationError as error:
        finding = left_out("options of the task", f"{error}; the task is written as text")
        return replace(model, task_options=None, findings=(*model.findings, finding))
    return model


def pipeline_text(pipeline: ImportedPipeline, origin: str) -> str:
    """Return the TOML of a pipeline; `origin` as in `release_text`. Raises ConfigurationError if it is not read."""
    values = {"schema": SCHEMA, "name": pipeline.name, "version": pipeline.version}
    text = f"# Imported from {json.dumps(origin)[1:-1]}\n{''.join(toml_lines(values))}\n{pipeline.body}"
    read_pipeline(text, f"{pipeline.name}/{pipeline.version}/{PIPELINE}")
    return text


def check_names(models: Sequence[ImportedModel | ImportedPipeline], into: Path) -> None:
    """Check that every release is new, and named once. Raises ConfigurationError."""
    names = [(model.name, model.version) for model in models]
    for name, version in names:
        if names.count((name, version)) > 1:
            problem = f"the source has {name} version {version} twice; rename one, or import one alone with --name"
            raise ConfigurationError(problem)
        check_absent(into / name / version)


def write_releases(
    models: Sequence[ImportedModel | ImportedPipeline], folder: Path, into: Path, origin: str
) -> list[Path]:
    """Write releases of the source in `folder` to the model directory `into`. Return their folders.

    All are staged before the first one appears. Raises ConfigurationError; then none of those that are not complete
    is left.
    """
    check_names(models, into)
    targets = [into / model.name / model.version for model in models]
    try:
        with ExitStack() as stack:
            for model, target in zip(models, targets, strict=True):
                _stage(model, folder, stack.enter_context(staged_folder(target)), origin)
    except OSError as error:
        place = error.filename or str(into)
        raise ConfigurationError(f"cannot be copied: {error.strerror or error}", file=str(place)) from error
    return targets


def _stage(model: ImportedModel | ImportedPipeline, folder: Path, place: Path, origin: str) -> None:
    """Write one release to `place`, and wait until its files are on the disk."""
    if isinstance(model, ImportedPipeline):
        for path in model.files:
            copy_file(folder / path, place / PurePosixPath(path).name)
        write_text(pipeline_text(model, origin), place / PIPELINE)
        return
    artifacts = {variant.name: _copy_variant(variant, folder, place) for variant in model.variants}
    write_text(release_text(model, artifacts, origin), place / MANIFEST)


def _copy_variant(variant: ImportedVariant, folder: Path, place: Path) -> list[Artifact]:
    """Copy the files of a variant to a folder of its name. They keep their places relative to the model file."""
    parent = PurePosixPath(variant.file).parent
    artifacts = []
    for path in (variant.file, *variant.others):
        target = f"{variant.name}/{PurePosixPath(path).relative_to(parent)}"
        copy_file(folder / path, place / target)
        artifacts.append(read_artifact(place, target))
    return artifacts


def release_text(model: ImportedModel, artifacts: Artifacts, origin: str) -> str:
    """Return the TOML of a release; `origin` is the source, for the comment in the first line.

    Raises ConfigurationError for steps of preprocessing that contradict each other.
    """
    place = f"{model.name}/{model.version}/{MANIFEST}"
    steps = {
        name: read_preprocess(Table(dict(keys), file=place, name="input.preprocess"))
        for name, keys in model.preprocess.items()
    }
    manifest = ModelManifest(
        name=model.name,
        version=model.version,
        inputs=tuple(replace(spec, preprocess=steps.get(spec.name)) for spec in model.inputs),
        outputs=model.outputs,
        variants=tuple(
            Variant(one.name, one.runtime, one.precision, tuple(artifacts[one.name]), one.accelerators, bind=one.bind)
            for one in model.variants
        ),
        task=model.task,
        task_options=model.task_options,
        labels=model.labels,
        batch=model.batch,
        max_batch_rows=model.max_batch_rows,
        sequence=model.sequence,
    )
    return f"# Imported from {json.dumps(origin)[1:-1]}\n{manifest_text(manifest)}"
