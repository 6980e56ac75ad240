"""Model directory: every version in it, complete and with matching digests, or refused with the reason.

Entries that are not served are refused releases as well, so that all are visible. Only hidden files,
documents and a few folders are left out (`gateway.common.domain.model_files`).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePosixPath

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.model_files import NO_MODEL, is_document, is_hidden, is_model, may_hold_nothing, near_model
from gateway.common.domain.pipeline import PIPELINE
from gateway.common.domain.release import NO_VERSION, Release
from gateway.common.domain.routing import version_order
from gateway.common.domain.runtimes import BY_SUFFIX
from gateway.common.store.settings import LibrarySettings
from gateway.serving.store.releases import (
    CONFIG,
    MANIFEST,
    Described,
    read_described,
    read_version,
    refused,
    unreadable,
)

NAMED = 3
"""Entries of a folder that one message names; the others are counted."""


def scan(root: Path, settings: LibrarySettings | None = None, *, may_be_absent: bool = False) -> tuple[Release, ...]:
    """Return every model version under `root`, and every entry that is not served, by name and version.

    Raises ConfigurationError if `root` cannot be read, or is absent unless it `may_be_absent`.
    """
    settings = settings or LibrarySettings()
    try:
        if not root.is_dir():
            problem = "the model directory does not exist; create it or name another with --models"
            if not root.exists() and may_be_absent:
                return ()
            if root.exists():
                problem = "is no folder; name the model directory with --models"
            raise ConfigurationError(problem, file=str(root))
        folders, files = _entries(root, settings, settings.models_limit)
    except OSError as error:
        problem = (
            f"the model directory cannot be read: {error.strerror}; make it readable or name another with --models"
        )
        raise ConfigurationError(problem, file=str(root)) from error
    found = [release for folder in folders for release in scan_folder(folder, settings)]
    found += _files_of_root(root, files, {folder.name for folder in folders}, settings)
    return tuple(sorted(found, key=lambda release: (release.name, version_order(release.version))))


def scan_model(root: Path, model: str, settings: LibrarySettings | None = None) -> tuple[Release, ...]:
    """Return the versions of one model under `root`: those of its folder, else the file of that name, else none."""
    settings = settings or LibrarySettings()
    if os.path.isdir(root / model):  # noqa: PTH112 - False for any string
        return tuple(release for release in scan_folder(root / model, settings) if release.name == model)
    named = [root / f"{model}{suffix}" for suffix in BY_SUFFIX]
    files = [file for file in named if os.path.isfile(file)]  # noqa: PTH113 - as above
    return tuple(_files_of_root(root, files, (), settings))


def scan_folder(folder: Path, settings: LibrarySettings | None = None) -> tuple[Release, ...]:
    """Return the versions in one model's folder, and the entries that are not served; nothing for an absent folder.

    A model file directly in the folder is version 1. A folder that cannot be read is a refused release without a
    version.
    """
    settings = settings or LibrarySettings()
    try:
        return tuple(_versions(folder, settings))
    except FileNotFoundError:
        return ()
    except ConfigurationError as error:
        return (refused(folder.name, "", folder, str(error)),)
    except OSError as error:
        return (refused(folder.name, "", folder, unreadable(error, folder)),)


def scan_version(folder: Path, settings: LibrarySettings | None = None) -> Release:
    """Return the release in one version's folder (…/<name>/<version>), valid or refused."""
    settings = settings or LibrarySettings()
    name = folder.parent.name
    try:
        described = read_described(folder.parent, settings)
    except ConfigurationError as error:
        return refused(name, folder.name, folder, str(error))
    return read_version(name, folder.name, folder, settings, described=described)


def _versions(folder: Path, settings: LibrarySettings) -> Iterator[Release]:
    folders, files = _entries(folder, settings, settings.versions_limit)
    if own := [name for name in (MANIFEST, PIPELINE) if (folder / name).is_file()]:
        problem = f"{own[0]} is in the model's own folder; move it and its files into {folder.name}/<version>"
        raise ConfigurationError(problem, file=str(folder))
    described = read_described(folder, settings)
    versions = [sub for sub in folders if _is_version(sub)]
    bare = next((file.name for file in files if is_model(file.name)), "")
    if bare and any(sub.name == "1" for sub in versions):
        problem = f"holds the bare model {bare}, which is version 1, and a folder 1; remove one of them"
        raise ConfigurationError(problem, file=str(folder))
    if not bare and not versions:
        if not may_hold_nothing(folder.name):
            problem = next(filter(None, (near_model(file.name) for file in files)), NO_MODEL)
            there = _named("there", [*folders, *files])
            yield refused(folder.name, NO_VERSION, folder, f"{folder}: {problem}{there}")
        return
    found = [(read_version(folder.name, "1", folder, settings, described=described), "")] if bare else []
    found += [(read_version(folder.name, sub.name, sub, settings, described=described), sub.name) for sub in versions]
    releases = _chosen(folder, [release for release, _ in found], described)
    yield from releases
    yield from _left_over(folder, found, [*folders, *files], described, settings)


def _chosen(folder: Path, releases: list[Release], described: Described | None) -> Iterator[Release]:
    """Yield the releases that the version policy of a configuration selects; those that it misses are refused."""
    there = [release.version for release in releases]
    left = described.config.unserved(there) if described else ()
    for version, absence in (described.config.missing(there) if described else {}).items():
        yield refused(folder.name, version, folder / version, f"{folder / version}: {absence}")
    remark = f"version_policy in {CONFIG} leaves out version {', '.join(left)}"
    for release in releases:
        if release.config and left and release.version not in left:
            yield replace(release, config=replace(release.config, remarks=(*release.config.remarks, remark)))
        elif release.manifest or release.version not in left:
            yield release


def _left_over(
    folder: Path,
    found: Iterable[tuple[Release, str]],
    entries: Sequence[Path],
    described: Described | None,
    settings: LibrarySettings,
) -> Iterator[Release]:
    """Yield entries that belong to no release of a model's folder; none for folders whose own release is refused."""
    used: set[str] = set()
    is_clear = True
    for release, version in found:
        if version:
            used.add(version)
            if not release.problem:
                inner, files = _entries(folder / version, settings, settings.entries_limit)
                yield from _unused(
                    folder / version, [*inner, *files], _paths(release), f"{folder.name}/{version}/", settings
                )
        else:
            is_clear = not release.problem
            used |= _paths(release)
        if described and (release.config or release.problem):
            used |= {CONFIG, described.config.label_filename}
    if is_clear:
        yield from _unused(folder, entries, used, f"{folder.name}/", settings)


def _files_of_root(
    root: Path, files: Iterable[Path], folders: Collection[str], settings: LibrarySettings
) -> Iterator[Release]:
    """Yield models whose file is directly in the model directory, and the files that belong to none."""
    files = list(files)
    by_stem: dict[str, list[str]] = {}
    for file in files:
        if is_model(file.name):
            by_stem.setdefault(file.stem, []).append(file.name)
    used: set[str] = set()
    for stem, names in by_stem.items():
        used.update(names)
        if stem in folders:
            problem = f"has the same name as the folder {stem}; move it into {stem}/<version>, or remove one of them"
            yield refused(names[0], NO_VERSION, root, f"{root / names[0]}: {problem}")
        else:
            release = read_version(stem, "1", root, settings, files=names)
            used |= _paths(release)
            yield release
    yield from _unused(root, files, used, "", settings)


def _paths(release: Release) -> set[str]:
    """Return the paths of a release's files, relative to its folder."""
    if release.bare:
        paths = [artifact.path for artifact in release.bare.artifacts]
    elif release.manifest:
        paths = [MANIFEST]
        paths += [artifact.path for variant in release.manifest.variants for artifact in variant.artifacts]
    elif release.pipeline:
        paths = [PIPELINE, *release.pipeline.files]
    else:
        paths = []
    declared = release.manifest or release.pipeline
    paths += [declared.golden.file] if declared and declared.golden else []
    return {str(PurePosixPath(path)) for path in paths}


def _unused(
    folder: Path, entries: Sequence[Path], used: Collection[str], prefix: str, settings: LibrarySettings
) -> Iterator[Release]:
    """Yield one refused release for all entries of a kind that are neither used nor documents.

    `used`: paths relative to `folder`. A folder that holds some of them is searched as well.
    """
    inner: dict[str, set[str]] = {}
    for path in used:
        name, _, rest_of_path = path.partition("/")
        inner.setdefault(name, set()).update([rest_of_path] if rest_of_path else ())
    rest = [entry for entry in entries if entry.name not in inner and not is_document(entry.name)]
    rest = [entry for entry in rest if not may_hold_nothing(entry.name)]
    kinds: dict[str, list[Path]] = {}
    for entry in rest:
        kinds.setdefault(_why_unused(entry), []).append(entry)
    for why, (first, *others) in kinds.items():
        problem = f"{first}: {why}{_named('likewise', others)}"
        yield refused(f"{prefix}{first.name}", NO_VERSION, folder, problem)
    for entry in entries:
        if (below := inner.get(entry.name)) and entry.is_dir():
            folders, files = _entries(entry, settings, settings.entries_limit)
            yield from _unused(entry, [*folders, *files], below, f"{prefix}{entry.name}/", settings)


def _named(word: str, entries: Sequence[Path]) -> str:
    """Return the names of a few entries in parentheses, after `word`; "" for none."""
    names = ", ".join(entry.name for entry in entries[:NAMED])
    more = f" and {len(entries) - NAMED} more" if len(entries) > NAMED else ""
    return f" ({word}: {names}{more})" if entries else ""


def _why_unused(entry: Path) -> str:
    if entry.name == CONFIG:
        return "is not read: it describes bare models, in the folder that has the model's name"
    if entry.is_dir():
        return "holds nothing that is served; remove the folder, or begin its name with a dot"
    if is_model(entry.name):
        return (
            "is not served: another model of this folder is; give it a folder of its own, or list it in manifest.toml"
        )
    if problem := near_model(entry.name):
        return problem
    if not entry.is_file():
        return "is no plain file, or a link to nothing; remove it"
    if entry.suffix == ".bin" and entry.with_suffix(".xml").is_file():
        return "belongs to the .xml of that name, which is refused; see there"
    if entry.suffix == ".bin" and any(entry.parent.glob("*.xml")):
        return "belongs to no model here; give weights of OpenVINO IR the name of their .xml, or remove the file"
    return "belongs to no model here; remove the file, or begin its name with a dot"


def _is_version(folder: Path) -> bool:
    """Return True if a folder contains a manifest or a model, or its name is a number, or it cannot be read."""
    if folder.name[:1].isdecimal():
        return True
    try:
        named = (entry for entry in folder.iterdir() if is_model(entry.name) or entry.name in {MANIFEST, PIPELINE})
        return any(entry.is_file() for entry in named)
    except OSError:
        return True


def _entries(folder: Path, settings: LibrarySettings, folders_limit: int) -> tuple[list[Path], list[Path]]:
    """Return the folders and the other entries of a folder, without hidden ones, by name."""
    entries = list(islice(folder.iterdir(), settings.entries_limit + 1))
    if len(entries) > settings.entries_limit:
        problem = f"holds more than {settings.entries_limit} entries; remove some"
        raise ConfigurationError(problem, file=str(folder))
    folders: list[Path] = []
    files: list[Path] = []
    for entry in sorted(entries):
        if not is_hidden(entry.name):
            (folders if entry.is_dir() else files).append(entry)
    if len(folders) > folders_limit:
        problem = f"holds {len(folders)} folders, at most {folders_limit} are read; remove some"
        raise ConfigurationError(problem, file=str(folder))
    return folders, files
