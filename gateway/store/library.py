"""The model directory: every version found there, whole and with matching digests, or refused with the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from gateway.domain.errors import ConfigurationError
from gateway.domain.manifest import Artifact, ModelManifest, Variant
from gateway.domain.manifest_toml import NAME_PATTERN, read_manifest
from gateway.domain.release import BARE_RUNTIMES, Release, bare_variant
from gateway.domain.routing import version_order
from gateway.store.plain import open_plain
from gateway.store.settings import LibrarySettings

MANIFEST = "manifest.toml"


def scan(root: Path, settings: LibrarySettings | None = None) -> tuple[Release, ...]:
    """Every model version under `root`, by name and version. ConfigurationError where `root` cannot be read."""
    settings = settings or LibrarySettings()
    try:
        if not root.is_dir():
            raise ConfigurationError(
                "the model directory does not exist; create it or name another with --models", file=str(root)
            )
        folders = list(_folders(root, settings.models_limit))
    except OSError as error:
        problem = (
            f"the model directory cannot be read: {error.strerror}; make it readable or name another with --models"
        )
        raise ConfigurationError(problem, file=str(root)) from error
    found = [release for folder in folders for release in scan_model(folder, settings)]
    return tuple(sorted(found, key=lambda release: (release.name, version_order(release.version))))


def scan_model(folder: Path, settings: LibrarySettings | None = None) -> tuple[Release, ...]:
    """The versions in one model's folder; a bare model file right inside it is version 1. None of an absent folder.

    A folder that cannot be looked through is one refused release without a version.
    """
    settings = settings or LibrarySettings()
    try:
        return tuple(_versions(folder, settings))
    except FileNotFoundError:
        return ()
    except (ConfigurationError, OSError) as error:
        return (_refused(folder.name, "", folder, f"{error}"),)


def scan_version(folder: Path, settings: LibrarySettings | None = None) -> Release:
    """One version's folder (…/<name>/<version>), whatever it holds."""
    return _read(folder.parent.name, folder.name, folder, settings or LibrarySettings())


def changed_file(manifest: ModelManifest, variant: Variant, folder: Path) -> Path | None:
    """The first of a variant's files, or the golden set, that is no longer what was read when `folder` was scanned."""
    wanted = [(artifact.path, artifact.sha256) for artifact in variant.artifacts]
    if manifest.golden:
        wanted.append((manifest.golden.file, manifest.golden.sha256))
    return next((folder / path for path, sha256 in wanted if _digest_or_none(folder / path) != sha256), None)


def _versions(folder: Path, settings: LibrarySettings) -> Iterator[Release]:
    versions = [sub for sub in _folders(folder, settings.versions_limit) if _is_version(sub)]
    if (folder / MANIFEST).is_file():
        problem = f"{MANIFEST} lies in the model's own folder; move it and its files into {folder.name}/<version>"
        raise ConfigurationError(problem, file=str(folder))
    bare = any((folder / name).is_file() for name in BARE_RUNTIMES)
    if bare and any(sub.name == "1" for sub in versions):
        problem = "holds a bare model, which is version 1, beside a folder 1; remove one of them"
        raise ConfigurationError(problem, file=str(folder))
    if bare:
        yield _read(folder.name, "1", folder, settings)
    for sub in versions:
        yield _read(folder.name, sub.name, sub, settings)


def _folders(root: Path, limit: int) -> Iterator[Path]:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__")))
    if len(folders) > limit:
        raise ConfigurationError(f"holds {len(folders)} folders, at most {limit} are read", file=str(root))
    yield from folders


def _is_version(folder: Path) -> bool:
    holds_model = any((folder / name).is_file() for name in (MANIFEST, *BARE_RUNTIMES))
    return holds_model or folder.name[:1].isdecimal()


def _read(name: str, version: str, folder: Path, settings: LibrarySettings) -> Release:
    try:
        return _read_checked(name, version, folder, settings)
    except ConfigurationError as error:
        return _refused(name, version, folder, str(error))
    except OSError as error:
        return _refused(name, version, folder, f"{folder}: cannot be read: {error}")


def _refused(name: str, version: str, folder: Path, problem: str) -> Release:
    """Names come from the disk, where they need not be Unicode: what cannot travel is escaped."""
    name, version, problem = (s.encode("utf-8", "backslashreplace").decode() for s in (name, version, problem))
    return Release(name, version, folder, problem=problem)


def _read_checked(name: str, version: str, folder: Path, settings: LibrarySettings) -> Release:
    for part in (name, version):
        if not NAME_PATTERN.fullmatch(part):
            raise ConfigurationError(
                f"{part!r} cannot name a model or version; use letters, digits, '.', '_' and '-'", file=str(folder)
            )
    if (folder / MANIFEST).is_file():
        return _read_release(name, version, folder, settings)
    return _read_bare(name, version, folder)


def _read_release(name: str, version: str, folder: Path, settings: LibrarySettings) -> Release:
    file = folder / MANIFEST
    text = _manifest_text(file, settings.manifest_limit_bytes)
    manifest = read_manifest(text, str(file))
    for key, declared, expected in (("name", manifest.name, name), ("version", manifest.version, version)):
        if declared != expected:
            raise ConfigurationError(
                f"says {declared!r}, but the folder is called {expected!r}; make them agree", file=str(file), key=key
            )
    _check_files(manifest, folder)
    digest = hashlib.sha256(f"{folder}\0{text}".encode()).hexdigest()
    return Release(name, version, folder, digest, manifest=manifest)


def _read_bare(name: str, version: str, folder: Path) -> Release:
    files = [folder / bare for bare in BARE_RUNTIMES if (folder / bare).is_file()]
    if len(files) != 1:
        what = "holds several bare models" if files else "holds no model"
        raise ConfigurationError(
            f"{what}; it takes a {MANIFEST} or exactly one of {', '.join(BARE_RUNTIMES)}", file=str(folder)
        )
    parts = [files[0]]
    if files[0].suffix == ".xml" and files[0].with_suffix(".bin").is_file():
        parts.append(files[0].with_suffix(".bin"))
    artifacts = tuple(Artifact(part.name, file_digest(part), part.stat().st_size) for part in parts)
    digest = hashlib.sha256(f"{folder}\0{[artifact.sha256 for artifact in artifacts]}".encode()).hexdigest()
    return Release(name, version, folder, digest, bare=bare_variant(files[0].name, artifacts))


def _manifest_text(file: Path, limit_bytes: int) -> str:
    size = file.stat().st_size
    if size > limit_bytes:
        raise ConfigurationError(f"has {size} bytes, at most {limit_bytes} are read", file=str(file))
    try:
        return file.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8: {error}", file=str(file)) from None


def _check_files(manifest: ModelManifest, folder: Path) -> None:
    for variant in manifest.variants:
        for artifact in variant.artifacts:
            _check_file(folder / artifact.path, artifact.sha256, artifact.size_bytes, folder, f"variant {variant.name}")
    if manifest.golden:
        _check_file(folder / manifest.golden.file, manifest.golden.sha256, None, folder, "golden")


def _check_file(path: Path, sha256: str, size_bytes: int | None, folder: Path, table: str) -> None:
    file = str(folder / MANIFEST)
    if not path.is_file():
        raise ConfigurationError(f"the artifact {path} is missing; restore it", file=file, table=table)
    size = path.stat().st_size
    if size_bytes is not None and size != size_bytes:
        raise ConfigurationError(f"{path} has {size} bytes, the manifest says {size_bytes}", file=file, table=table)
    digest = file_digest(path)
    if digest != sha256:
        raise ConfigurationError(
            f"{path} has the sha256 digest {digest}, the manifest says {sha256}; the file is not the one released",
            file=file,
            table=table,
        )


def _digest_or_none(path: Path) -> str | None:
    try:
        return file_digest(path) if path.is_file() else None
    except OSError:
        return None


def file_digest(path: Path) -> str:
    """SHA-256 of a plain file's content, as hex. Raises OSError."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
