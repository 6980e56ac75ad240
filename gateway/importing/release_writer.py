"""Writing of imported releases: each is complete or absent, and nothing existing is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest import Artifact
from gateway.domain.manifest_toml import read_manifest
from gateway.importing.imported import ImportedModel, ImportedVariant, left_out
from gateway.importing.manifest_text import manifest_text
from gateway.store.references import read_artifact
from gateway.store.releases import MANIFEST
from gateway.store.staging import check_absent, copy_file, staged_folder, write_text
from gateway.tasks.catalog import task_of

UNKNOWN = Artifact("model", "0" * 64, 0)
"""Artifact of a manifest that is read before its files are copied."""


def settled(model: ImportedModel) -> ImportedModel:
    """Return a model whose manifest this version of the gateway reads.

    A task that it does not know, or that the outputs do not fit, is written as text and reported. Raises
    ConfigurationError for every other fault.
    """
    artifacts = {variant.name: (UNKNOWN,) for variant in model.variants}
    place = f"{model.name}/{model.version}/{MANIFEST}"
    manifest = read_manifest(manifest_text(model, artifacts, ""), place)
    try:
        task_of(manifest)
    except ConfigurationError as error:
        finding = left_out("options of the task", f"{error}; the task is written as text")
        return replace(model, task_options=None, findings=(*model.findings, finding))
    return model


def check_names(models: Sequence[ImportedModel], into: Path) -> None:
    """Check that every release is new, and named once. Raises ConfigurationError."""
    names = [(model.name, model.version) for model in models]
    for name, version in names:
        if names.count((name, version)) > 1:
            problem = f"the source has {name} version {version} twice; rename one, or import one alone with --name"
            raise ConfigurationError(problem)
        check_absent(into / name / version)


def write_releases(models: Sequence[ImportedModel], folder: Path, into: Path, origin: str) -> list[Path]:
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


def _stage(model: ImportedModel, folder: Path, place: Path, origin: str) -> None:
    """Write one release to `place`, and wait until its files are on the disk."""
    artifacts = {variant.name: _copy_variant(variant, folder, place) for variant in model.variants}
    write_text(manifest_text(model, artifacts, origin), place / MANIFEST)


def _copy_variant(variant: ImportedVariant, folder: Path, place: Path) -> list[Artifact]:
    """Copy the files of a variant to a folder of its name. They keep their places relative to the model file."""
    parent = PurePosixPath(variant.file).parent
    artifacts = []
    for path in (variant.file, *variant.others):
        target = f"{variant.name}/{PurePosixPath(path).relative_to(parent)}"
        copy_file(folder / path, place / target)
        artifacts.append(read_artifact(place, target))
    return artifacts
