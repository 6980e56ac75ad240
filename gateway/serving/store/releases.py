"""One version of a model in the model directory: its checked files, or the reason why it is refused."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest import Artifact, ModelManifest, Variant
from gateway.common.domain.manifest_toml import NAME_PATTERN, read_manifest
from gateway.common.domain.model_files import choose_model, is_model
from gateway.common.domain.pipeline import PIPELINE, Pipeline
from gateway.common.domain.pipeline_toml import read_pipeline
from gateway.common.domain.release import Release, bare_variant
from gateway.common.domain.triton_config import TritonConfig, read_config
from gateway.common.store.plain import file_digest, open_plain
from gateway.common.store.settings import LibrarySettings
from gateway.serving.store.references import check_references, read_artifact, references

MANIFEST = "manifest.toml"
CONFIG = "config.pbtxt"
PLAIN = "put a plain file there that the gateway's user may read, or remove it"
FOLDER = "check that it is there and that the gateway's user may read it"
NAMES = "rename it: up to 128 letters (a-z, A-Z), digits, '.', '_' and '-', with a letter or digit first"


@dataclass(frozen=True, slots=True)
class Described:
    """Content of a `config.pbtxt`, the labels of the file that it names, and a digest of both."""

    config: TritonConfig
    labels: tuple[str, ...] = ()
    digest: str = ""


def read_described(folder: Path, settings: LibrarySettings) -> Described | None:
    """Return Triton's configuration in a model's folder, or None. Raises ConfigurationError."""
    file = folder / CONFIG
    if not is_here(file):
        return None
    text = read_text(file, settings.manifest_limit_bytes)
    config = read_config(text, str(file), folder.name)
    labels = ""
    if config.label_filename:
        path = folder / config.label_filename
        if not path.is_file():
            problem = f"the label file {config.label_filename} is missing; put it next to {CONFIG}, or remove the field"
            raise ConfigurationError(problem, file=str(file), key="label_filename")
        labels = read_text(path, settings.manifest_limit_bytes)
    digest = hashlib.sha256(f"{text}\0{labels}".encode()).hexdigest()
    return Described(config, tuple(line.strip() for line in labels.splitlines()), digest)


def read_version(
    name: str,
    version: str,
    folder: Path,
    settings: LibrarySettings,
    *,
    described: Described | None = None,
    files: Sequence[str] | None = None,
) -> Release:
    """Return the release in `folder`.

    A bare model is one of `files` (None: of the whole folder) and may be `described`.
    """
    try:
        _check_names(name, version, folder / files[0] if files else folder)
        if files is None and is_here(folder / MANIFEST):
            return _read_manifest(name, version, folder, settings)
        if files is None and is_here(folder / PIPELINE):
            return _read_pipeline(name, version, folder, settings)
        return _read_bare(name, version, folder, described, files)
    except ConfigurationError as error:
        return refused(name, version, folder, str(error))
    except OSError as error:
        return refused(name, version, folder, unreadable(error, folder))


def unreadable(error: OSError, folder: Path) -> str:
    """Return the place that could not be read, the system's message, and the remedy."""
    where = error.filename or str(folder)
    remedy = FOLDER if where == str(folder) else PLAIN
    return f"{where}: cannot be read: {error.strerror or error}; {_permission(error, where) or remedy}"


def _permission(error: OSError, where: str) -> str:
    """Return the command that lets the gateway read what it is denied; "" if that is not the problem."""
    command = f"let the gateway's user read it: sudo chmod -R a+rX {shlex.quote(where)}"
    return command if isinstance(error, PermissionError) else ""


def _check_names(name: str, version: str, place: Path) -> None:
    for part in (name, version):
        if not NAME_PATTERN.fullmatch(part):
            raise ConfigurationError(f"{part!r} cannot name a model or version; {NAMES}", file=str(place))


def refused(name: str, version: str, folder: Path, problem: str) -> Release:
    """Return a refused release.

    Line ends and bytes that are no Unicode, which names on a disk may contain, are escaped.
    """
    name, version, problem = map(_escaped, (name, version, problem))
    return Release(name, version, folder, problem=problem)


def _escaped(text: str) -> str:
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def is_here(file: Path) -> bool:
    """Return True if the name exists, even as a dangling link: it is read or refused, never ignored."""
    return os.path.lexists(file)


def read_text(file: Path, limit_bytes: int) -> str:
    """Return the text of a plain file of at most `limit_bytes`. Raises ConfigurationError."""
    try:
        with open_plain(file) as stream:
            content = stream.read(limit_bytes + 1)
    except OSError as error:
        remedy = _permission(error, str(file)) or PLAIN
        raise ConfigurationError(f"cannot be read: {error.strerror}; {remedy}", file=str(file)) from error
    if len(content) > limit_bytes:
        raise ConfigurationError(
            f"has more than {limit_bytes} bytes, which is all that is read; shorten it", file=str(file)
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8: {error}", file=str(file)) from None


def changed_file(manifest: ModelManifest, variant: Variant, folder: Path) -> Path | None:
    """Return the first of a variant's files, or the golden set, that changed since `folder` was scanned, or None."""
    wanted = [(artifact.path, artifact.sha256) for artifact in variant.artifacts]
    changed = next((folder / path for path, sha256 in wanted if _digest_or_none(folder / path) != sha256), None)
    return changed or changed_golden(manifest, folder)


def changed_golden(manifest: ModelManifest, folder: Path) -> Path | None:
    """Return the golden set if it has changed since `folder` was scanned, else None."""
    golden = manifest.golden
    if golden is None or _digest_or_none(folder / golden.file) == golden.sha256:
        return None
    return folder / golden.file


def copy_listed(release: Release, folder: Path) -> Release:
    """Return the release with only its listed files, in `folder`: as links if the disk permits, else as copies.

    Raises ConfigurationError.
    """
    variants = release.manifest.variants if release.manifest else filter(None, (release.bare,))
    golden = release.manifest.golden if release.manifest else None
    paths = {artifact.path for variant in variants for artifact in variant.artifacts}
    try:
        for path in sorted(paths | ({golden.file} if golden else set())):
            place = folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            try:
                place.hardlink_to((release.folder / path).resolve())
            except OSError:
                shutil.copyfile(release.folder / path, place)
    except OSError as error:
        problem = f"{path} cannot be copied: {error.strerror}; name a folder with room for it in TMPDIR"
        raise ConfigurationError(problem, file=str(folder)) from error
    return replace(release, folder=folder)


def _read_manifest(name: str, version: str, folder: Path, settings: LibrarySettings) -> Release:
    file = folder / MANIFEST
    text = read_text(file, settings.manifest_limit_bytes)
    manifest = read_manifest(text, str(file))
    _check_agreement(manifest, name, version, file)
    if manifest.task_options is not None:
        from gateway.serving.tasks.catalog import task_of

        task_of(manifest)
    _check_files(manifest, folder, file)
    check_references(manifest.variants, folder)
    digest = hashlib.sha256(f"{folder}\0{text}".encode()).hexdigest()
    return Release(name, version, folder, digest, manifest=manifest)


def _check_agreement(declared: ModelManifest | Pipeline, name: str, version: str, file: Path) -> None:
    for key, says, expected in (("name", declared.name, name), ("version", declared.version, version)):
        if says != expected:
            problem = f"says {says!r}, but the folder is called {expected!r}; make them agree"
            raise ConfigurationError(problem, file=str(file), key=key)


def _read_pipeline(name: str, version: str, folder: Path, settings: LibrarySettings) -> Release:
    file = folder / PIPELINE
    text = read_text(file, settings.manifest_limit_bytes)
    pipeline = read_pipeline(text, str(file))
    _check_agreement(pipeline, name, version, file)
    files = [read_artifact(folder, path) for path in pipeline.files]
    if pipeline.golden:
        _check_file(folder / pipeline.golden.file, pipeline.golden.sha256, None, file, "golden")
    return Release(name, version, folder, _digest(folder, files, text), pipeline=pipeline)


def _read_bare(
    name: str, version: str, folder: Path, described: Described | None, files: Sequence[str] | None
) -> Release:
    there = files or _files(folder)
    try:
        model = choose_model(there, described.config.model_filename if described else "")
    except ValueError as error:
        raise ConfigurationError(str(error), file=str(folder)) from None
    artifacts = tuple(read_artifact(folder, path) for path in (model, *references(folder, model)))
    variant = bare_variant(model, artifacts)
    if described is None:
        return Release(name, version, folder, _digest(folder, artifacts, ""), bare=variant)
    described.config.check_runtime(variant.runtime)
    digest = _digest(folder, artifacts, described.digest)
    return Release(name, version, folder, digest, bare=variant, config=described.config, labels=described.labels)


def _files(folder: Path) -> list[str]:
    """Return the names of the files in `folder`. Raises ConfigurationError if its only models are no regular files."""
    entries = sorted(folder.iterdir())
    files = [entry.name for entry in entries if entry.is_file()]
    others = [entry for entry in entries if is_model(entry.name) and entry.name not in files]
    if others and not any(map(is_model, files)):
        problem = "is no plain file, or a link to nothing; put the file itself there"
        raise ConfigurationError(problem, file=str(others[0]))
    return files


def _digest(folder: Path, artifacts: Iterable[Artifact], described: str) -> str:
    files = [(artifact.path, artifact.sha256) for artifact in artifacts]
    return hashlib.sha256(f"{folder}\0{files}\0{described}".encode()).hexdigest()


def _check_files(manifest: ModelManifest, folder: Path, file: Path) -> None:
    for variant in manifest.variants:
        for artifact in variant.artifacts:
            _check_file(folder / artifact.path, artifact.sha256, artifact.size_bytes, file, f"variant {variant.name}")
    if manifest.golden:
        _check_file(folder / manifest.golden.file, manifest.golden.sha256, None, file, "golden")


def _check_file(path: Path, sha256: str, size_bytes: int | None, declared: Path, table: str) -> None:
    file = str(declared)
    if not path.is_file():
        raise ConfigurationError(f"the artifact {path} is missing; restore it (EG-302)", file=file, table=table)
    size = path.stat().st_size
    if size_bytes is not None and size != size_bytes:
        raise ConfigurationError(
            f"{path} has {size} bytes, the manifest says {size_bytes} (EG-303)", file=file, table=table
        )
    digest = file_digest(path)
    if digest != sha256:
        raise ConfigurationError(
            f"{path} has the sha256 digest {digest}, the manifest says {sha256}; the file is not the one released "
            "(EG-303)",
            file=file,
            table=table,
        )


def _digest_or_none(path: Path) -> str | None:
    try:
        return file_digest(path) if path.is_file() else None
    except OSError:
        return None
