"""Writing of imported releases: each is complete or absent, and nothing existing is replaced."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest import Artifact
from gateway.domain.manifest_toml import read_manifest
from gateway.files.durable import make_folder, rename, sync_folder, temporary
from gateway.importing.imported import ImportedModel, ImportedVariant, left_out
from gateway.importing.manifest_text import manifest_text
from gateway.store.plain import open_plain
from gateway.tasks.catalog import task_of

MANIFEST = "manifest.toml"
CHUNK_BYTES = 1_048_576
"""Memory used to copy a file."""
_UNKNOWN = Artifact("model", "0" * 64, 0)


def settled(model: ImportedModel) -> ImportedModel:
    """Return a model whose manifest this version of the gateway reads.

    A task that it does not know, or that the outputs do not fit, is written as text and reported. Raises
    ConfigurationError for every other fault.
    """
    artifacts = {variant.name: (_UNKNOWN,) for variant in model.variants}
    place = f"{model.name}/{model.version}/{MANIFEST}"
    manifest = read_manifest(manifest_text(model, artifacts, ""), place)
    try:
        task_of(manifest)
    except ConfigurationError as error:
        finding = left_out("options of the task", f"{error}; the task is written as text")
        return replace(model, task_options=None, findings=(*model.findings, finding))
    return model


def check_absent(models: Sequence[ImportedModel], into: Path) -> None:
    """Check that every release is new, and named once. Raises ConfigurationError."""
    names = [(model.name, model.version) for model in models]
    for name, version in names:
        if names.count((name, version)) > 1:
            problem = f"the source has {name} version {version} twice; rename one, or import one alone with --name"
            raise ConfigurationError(problem)
        if os.path.lexists(into / name / version):
            problem = "exists already, and is not replaced; remove it, or name another with --version or --name"
            raise ConfigurationError(problem, file=str(into / name / version))


def write_releases(models: Sequence[ImportedModel], folder: Path, into: Path, origin: str) -> list[Path]:
    """Write releases of the source in `folder` to the model directory `into`. Return their folders.

    All are staged in a hidden folder of `into` before the first one appears. Raises ConfigurationError; then none of
    those that are not complete is left.
    """
    check_absent(models, into)
    with _staging(into) as staged:
        places = [_stage(model, folder, staged / str(place), origin) for place, model in enumerate(models)]
        return [_appear(model, place, into) for model, place in zip(models, places, strict=True)]


@contextmanager
def _staging(into: Path) -> Iterator[Path]:
    """Yield a new hidden folder in `into`, which is created if it is missing; it is removed at the end."""
    try:
        make_folder(into, None)
        staged = temporary(into)
        staged.mkdir()
        try:
            yield staged
        finally:
            shutil.rmtree(staged, ignore_errors=True)
    except OSError as error:
        place = error.filename or str(into)
        raise ConfigurationError(f"cannot be copied: {error.strerror or error}", file=str(place)) from error


def _stage(model: ImportedModel, folder: Path, place: Path, origin: str) -> Path:
    """Write one release to `place`, and wait until it is on the disk."""
    place.mkdir()
    artifacts = {variant.name: _copy_variant(variant, folder, place) for variant in model.variants}
    text = manifest_text(model, artifacts, origin)
    with (place / MANIFEST).open("xb") as stream:
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())
    for inner in [entry for entry in place.rglob("*") if entry.is_dir()]:
        sync_folder(inner)
    sync_folder(place)
    return place


def _appear(model: ImportedModel, place: Path, into: Path) -> Path:
    target = into / model.name / model.version
    make_folder(target.parent, None)
    rename(place, target)
    return target


def _copy_variant(variant: ImportedVariant, folder: Path, place: Path) -> list[Artifact]:
    """Copy the files of a variant to a folder of its name. They keep their places relative to the model file."""
    parent = PurePosixPath(variant.file).parent
    artifacts = []
    for path in (variant.file, *variant.others):
        target = f"{variant.name}/{PurePosixPath(path).relative_to(parent)}"
        (place / target).parent.mkdir(parents=True, exist_ok=True)
        artifacts.append(_copy(folder / path, place / target, target))
    return artifacts


def _copy(source: Path, target: Path, path: str) -> Artifact:
    digest, size_bytes = hashlib.sha256(), 0
    with open_plain(source) as original, target.open("xb") as copy:
        while chunk := original.read(CHUNK_BYTES):
            copy.write(chunk)
            digest.update(chunk)
            size_bytes += len(chunk)
        copy.flush()
        os.fsync(copy.fileno())
    return Artifact(path, digest.hexdigest(), size_bytes)
