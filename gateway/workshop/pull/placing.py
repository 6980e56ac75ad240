"""From verified parts to a release in the model directory: made in the staging folder, moved in one rename."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import NAME_PATTERN, read_manifest
from gateway.common.domain.release import Release
from gateway.common.files import durable
from gateway.common.store.errors import store_errors
from gateway.common.store.settings import LibrarySettings
from gateway.serving.store.library import scan_version
from gateway.serving.store.releases import MANIFEST, read_text
from gateway.workshop.pull.archive import FILE_MODE, named_once, unpack
from gateway.workshop.pull.archive_bounds import ArchiveBudget, ArchiveError, member_path
from gateway.workshop.pull.manifest import ReleasePart
from gateway.workshop.pull.settings import PullSettings
from gateway.workshop.pull.staging import StagingFolder

RECORD = ".pulled.json"
"""Hidden file of a release: its source and the digest that vouched for it."""
RECORD_LIMIT_BYTES = 65_536
FIRST_VERSION = "1"
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK})
"""Errors of link(2) on file systems that cannot do it, such as vfat."""


@dataclass(frozen=True, slots=True)
class ReleaseName:
    """Name and version that a release gets. `name` and `version`: "" if the command line gave none."""

    name: str
    version: str
    default_name: str


@dataclass(frozen=True, slots=True)
class PullRecord:
    """Source of a release in the model directory. `digest`: in hex, of the OCI manifest or of the file."""

    source: str
    digest: str


def find_pulled(models: Path, digest: str, wanted: ReleaseName) -> Path | None:
    """Return the folder of a release that was pulled with this digest, and has the wanted name and version."""
    for record in sorted(models.glob(f"*/*/{RECORD}")):
        folder = record.parent
        fits = wanted.name in {"", folder.parent.name} and wanted.version in {"", folder.name}
        if fits and _recorded_digest(record) == digest:
            return folder
    return None


def make_release(
    folder: StagingFolder, parts: Sequence[ReleasePart], wanted: ReleaseName, record: PullRecord, settings: PullSettings
) -> Path:
    """Return the folder of a release, …/NAME/VERSION in the staging folder, made of verified parts.

    Raise ArchiveError, ConfigurationError, SpaceError, StoreError.
    """
    content, budget = folder.new_folder(), ArchiveBudget(settings)
    for part in parts:
        blob = folder.blobs.path(part.digest)
        if part.archive:
            unpack(blob, part.archive, content, budget)
        else:
            _link(blob, content / member_path(part.name, settings.depth_limit))
    root = release_root(content)
    name, version = _named(root, wanted, settings.library.manifest_limit_bytes)
    made = folder.new_folder() / name / version
    with store_errors(made):
        made.parent.mkdir()
        root.rename(made)
        durable.write_file(made / RECORD, json.dumps(asdict(record)).encode(), FILE_MODE & ~_umask())
        for path in (made, *filter(Path.is_dir, made.rglob("*"))):
            durable.sync_folder(path)
    return made


def check_release(made: Path, settings: LibrarySettings) -> Release:
    """Return the release in a folder. Raise ArchiveError if its files or digests are not what its manifest says."""
    release = scan_version(made, settings)
    if release.problem:
        raise ArchiveError(f"holds no release that can be served: {release.problem}")
    return release


def move_release(made: Path, models: Path) -> Path:
    """Move a release from the staging folder into the model directory; return its folder.

    Raise ConfigurationError if there is one already, StoreError.
    """
    target = models / made.parent.name / made.name
    if os.path.lexists(target):
        problem = "exists already, from elsewhere; remove it, or give another --version"
        raise ConfigurationError(problem, file=str(target))
    with store_errors(target):
        durable.make_folder(target.parent, None)
        durable.rename(made, target)
    return target


def release_root(content: Path) -> Path:
    """Return the folder with the release in what was unpacked: a folder that holds one folder only is left out."""
    while True:
        entries = list(content.iterdir())
        if len(entries) != 1 or not entries[0].is_dir():
            return content
        content = entries[0]


def _named(root: Path, wanted: ReleaseName, limit_bytes: int) -> tuple[str, str]:
    """Return name and version: the manifest's, else those of the command line."""
    file = root / MANIFEST
    if not file.is_file():
        name, version = wanted.name or wanted.default_name, wanted.version or FIRST_VERSION
        return _checked(name, "--name"), _checked(version, "--version")
    manifest = read_manifest(read_text(file, limit_bytes), MANIFEST)
    for option, given, own in (("name", wanted.name, manifest.name), ("version", wanted.version, manifest.version)):
        if given not in {"", own}:
            problem = f"the manifest says {option} {own!r}, --{option} says {given!r}; leave the option out"
            raise ConfigurationError(problem)
    return manifest.name, manifest.version


def _checked(value: str, option: str) -> str:
    if not NAME_PATTERN.fullmatch(value):
        raise ConfigurationError(
            f"{value!r:.150} cannot name a model or version; give {option} with letters, digits, '.', '_' and '-'"
        )
    return value


def _link(blob: Path, file: Path) -> None:
    """Give a verified blob a second name, in the release; on a file system without links, copy it."""
    with named_once(file), store_errors(file):
        durable.make_folder(file.parent, None)
        mode = FILE_MODE & ~_umask()
        try:
            file.hardlink_to(blob)
            file.chmod(mode)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            with blob.open("rb") as content, durable.replacing(file, mode, durable.temporary(file.parent)) as copy:
                shutil.copyfileobj(content, copy)


def _umask() -> int:
    """Return the umask. It can only be read by setting it; a command has one thread that makes files."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _recorded_digest(record: Path) -> str:
    try:
        found = json.loads(record.read_bytes()[:RECORD_LIMIT_BYTES])
        return str(found["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
