"""Verification of a published repository: every signature, threshold, version, digest and expiry.

Pure, except for `verify` and `stated_bytes`, which read the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from tuf.api.metadata import Metadata, Root, TargetFile, Targets

from fleet.disk import file_digest, read_bounded
from fleet.publisher.releases import signed_floor
from fleet.publisher.repository import (
    ASSIGNMENTS,
    Published,
    blob_file,
    metadata_file,
    read_assignments,
    read_metadata,
    read_published,
    root_versions,
    target_file,
)
from fleet.publisher.roles import DIRECTOR, ROOT, SNAPSHOT, TARGETS, TIMESTAMP, delegated_roles, quorum
from fleet.publisher.settings import FleetSettings
from fleet.publisher.software import named_files
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release_documents import ReleaseDocument, read_release_document
from gateway.common.domain.release_paths import is_release
from gateway.common.terminal.tables import counted

DAY_S = 86_400
Advance = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, its location, and the remedy."""

    where: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Expiry:
    """Expiry of a document. `days` are left (negative: expired)."""

    what: str
    version: int
    expires: datetime
    days: float


@dataclass(frozen=True, slots=True)
class Report:
    """Result of `verify`. `files` were hashed, `size_bytes` in total."""

    findings: tuple[Finding, ...]
    expiries: tuple[Expiry, ...]
    files: int = 0
    size_bytes: int = 0


def chain_findings(roots: Sequence[Metadata[Root]]) -> Iterator[Finding]:
    """Check that roots ascend without a gap, each signed by its own threshold and the previous one's (TUF 5.3.4)."""
    for before, root in zip([None, *roots], roots, strict=False):
        where = metadata_file(ROOT, root.signed.version)
        if before and root.signed.version != before.signed.version + 1:
            yield Finding(where, f"follows root {before.signed.version}", "restore the roots between from a backup")
            continue
        for delegator, whose in ((root, "its own"), (before, "the previous root's")):
            missing = quorum(delegator.signed, ROOT).missing(root) if delegator else 0
            if missing:
                yield Finding(where, f"lacks {missing} of {whose} signatures", "restore it from a backup")


def signature_findings(state: Published) -> Iterator[Finding]:
    """Check the thresholds from the newest root down to every delegated role."""
    if state.root is None:
        yield Finding(metadata_file(ROOT, 1), "is missing", "this is no repository, or edge-fleet publish never ran")
        return
    top = {TIMESTAMP: state.timestamp, SNAPSHOT: state.snapshot, TARGETS: state.targets}
    for role, metadata in top.items():
        if metadata is None:
            yield Finding(role, "is missing", "edge-fleet publish")
        else:
            yield from _signed(state.root.signed, role, cast("Any", metadata))
    for role, owner in state.roles.items():
        if state.targets is not None:
            yield from _delegated(state.targets.signed, role, owner)


def version_findings(state: Published) -> Iterator[Finding]:
    """Check that files have the version that the snapshot and their name state."""
    meta = state.snapshot.signed.meta if state.snapshot else {}
    for role, metadata in {TARGETS: state.targets, **state.roles}.items():
        listed = meta.get(f"{role}.json")
        if metadata is not None and listed is not None and metadata.signed.version != listed.version:
            problem = f"says version {metadata.signed.version}"
            yield Finding(metadata_file(role, listed.version), problem, "restore it from a backup")


def expiries(state: Published, now: datetime) -> tuple[Expiry, ...]:
    """Return the expiry of every document, the soonest first."""
    documents = {ROOT: state.root, TARGETS: state.targets, SNAPSHOT: state.snapshot, TIMESTAMP: state.timestamp}
    found = [expiry_of(role, m, now) for role, m in {**documents, **state.roles}.items() if m]
    return tuple(sorted(found, key=lambda expiry: expiry.days))


def expiry_of(what: str, metadata: Metadata[Any], now: datetime) -> Expiry:
    """Return the expiry of one document."""
    signed = metadata.signed
    return Expiry(what, signed.version, signed.expires, (signed.expires - now).total_seconds() / DAY_S)


def expiry_findings(found: Iterable[Expiry]) -> Iterator[Finding]:
    """Yield a finding for each expired document: devices refuse it."""
    for expiry in found:
        if expiry.days <= 0:
            online = expiry.what in {SNAPSHOT, TIMESTAMP}
            device = expiry.what.removeprefix(f"{ASSIGNMENTS}/")
            remedy = "edge-fleet publish" if online else f"edge-fleet renew {expiry.what}, sign, publish"
            if device != expiry.what:
                remedy = f"edge-fleet assign --renew {device}"
            yield Finding(expiry.what, f"expired {-expiry.days:.1f} days ago", remedy)


def assignment_findings(state: Published, device: str, metadata: Metadata[Targets]) -> Iterator[Finding]:
    """Check an assignment: signed by the director, for this device, with published releases in distinct slots."""
    where, again = f"{ASSIGNMENTS}/{device}", f"edge-fleet assign {device} …"
    try:
        missing = quorum(cast("Metadata[Targets]", state.targets).signed, DIRECTOR).missing(metadata)
    except ConfigurationError:
        missing = 1
    if missing:
        yield Finding(where, "is not signed by the director", again)
    if metadata.signed.unrecognized_fields.get("device") != device:
        yield Finding(where, "is addressed to another device", again)
    customs = [target.custom for target in metadata.signed.targets.values()]
    slots = [str(custom["slot"]) for custom in customs if isinstance(custom, dict) and "slot" in custom]
    for slot in sorted({slot for slot in slots if slots.count(slot) > 1}):
        yield Finding(where, f"fills the slot {slot} twice", again)
    for path, target in metadata.signed.targets.items():
        signed = state.target(path)
        if signed is None or (signed.length, signed.hashes) != (target.length, target.hashes):
            yield Finding(where, f"names {path}, which is not published like that", again)


def release_findings(target: TargetFile, release: ReleaseDocument) -> Iterator[Finding]:
    """Check that a release's document states its target's path and custom part."""
    again = "add it under a new version"
    if release.target != target.path:
        yield Finding(target.path, f"is the document of {release.target}", again)
    if signed_floor(target) != release.floor:
        problem = f"signs the floor {signed_floor(target)}, its document says {release.floor}"
        yield Finding(target.path, problem, again)


def verify(folder: Path, now: datetime, settings: FleetSettings, advance: Advance = lambda _: None) -> Report:
    """Verify the published repository in `folder`. Unreadable metadata are a finding and end the verification."""
    limit = settings.document_limit_bytes
    try:
        state = read_published(folder, limit)
        roots = [read_metadata(folder, metadata_file(ROOT, version), Root, limit) for version in root_versions(folder)]
        assignments = read_assignments(folder, limit)
    except ConfigurationError as error:
        return Report((Finding(error.file, error.problem, "restore it from a backup, or publish again"),), ())
    findings = [*chain_findings(roots), *signature_findings(state), *version_findings(state)]
    for device, metadata in assignments.items():
        findings += assignment_findings(state, device, metadata)
    times = [expiry_of(f"{ASSIGNMENTS}/{device}", metadata, now) for device, metadata in assignments.items()]
    found = tuple(sorted([*expiries(state, now), *times], key=lambda expiry: expiry.days))
    content = _Content(folder, settings, advance)
    findings += [*expiry_findings(found), *content.findings(_targets(state))]
    return Report(tuple(findings), found, len(content.seen), sum(content.seen.values()))


def stated_bytes(folder: Path, settings: FleetSettings) -> int:
    """Return how many bytes `verify` will hash, for a progress bar. Unreadable files count as 0."""
    try:
        state = read_published(folder, settings.document_limit_bytes)
    except ConfigurationError:
        return 0
    content = _Content(folder, settings, lambda _: None)
    sizes: dict[str, int] = {}
    for target in _targets(state):
        release = content.release(target)
        sizes[target_file(target)] = target.length
        sizes |= {blob_file(file.sha256): file.size_bytes for file in (named_files(release) if release else ())}
    return sum(sizes.values())


class _Content:
    """Targets and blobs on disk. Each file is hashed once."""

    def __init__(self, folder: Path, settings: FleetSettings, advance: Advance) -> None:
        self._folder, self._settings, self._advance = folder, settings, advance
        self.seen: dict[str, int] = {}

    def findings(self, targets: Iterable[TargetFile]) -> Iterator[Finding]:
        for target in targets:
            yield from self._file(target_file(target), target.length, target.hashes["sha256"])
            if not is_release(target.path):
                continue
            release = self.release(target)
            if release is None:
                yield Finding(target.path, "is no release document", "add it under a new version")
                continue
            yield from release_findings(target, release)
            for file in named_files(release):
                yield from self._file(blob_file(file.sha256), file.size_bytes, file.sha256)

    def release(self, target: TargetFile) -> ReleaseDocument | None:
        """Return the document of a release, or None if `target` is no release or is unreadable."""
        if not is_release(target.path):
            return None
        try:
            content = read_bounded(self._folder / target_file(target), self._settings.document_limit_bytes)
            return read_release_document(target.path, content)
        except (ConfigurationError, ValueError):
            return None

    def _file(self, name: str, size_bytes: int, sha256: str) -> Iterator[Finding]:
        if name in self.seen:
            return
        self.seen[name] = size_bytes
        remedy = "copy it here from another mirror or a backup"
        try:
            size = (self._folder / name).stat().st_size
            digest = file_digest(self._folder / name) if size == size_bytes else ""
        except OSError as error:
            yield Finding(name, f"cannot be read: {error.strerror or error}", remedy)
            return
        self._advance(size)
        if size != size_bytes:
            yield Finding(name, f"has {size} bytes, {size_bytes} are signed", remedy)
        elif digest != sha256:
            yield Finding(name, f"has the digest {digest}, another is signed", remedy)


def _targets(state: Published) -> list[TargetFile]:
    return [target for role in state.roles.values() for target in role.signed.targets.values()]


def _delegated(targets: Targets, role: str, metadata: Metadata[Targets]) -> Iterator[Finding]:
    delegated = delegated_roles(targets).get(role)
    if delegated is None:
        yield Finding(role, "is signed, but targets delegates nothing to it", f"edge-fleet delegate {role}")
        return
    yield from _signed(targets, role, metadata)
    for path in metadata.signed.targets:
        if not delegated.is_delegated_path(path):
            yield Finding(role, f"lists {path}, which is outside its paths: no device will take it", "remove it")


def _signed(delegator: Root | Targets, role: str, metadata: Metadata[Any]) -> Iterator[Finding]:
    missing = quorum(delegator, role).missing(metadata)
    if missing:
        remedy = "edge-fleet publish" if role in {SNAPSHOT, TIMESTAMP} else f"edge-fleet renew {role}, sign, publish"
        yield Finding(f"{role} {metadata.signed.version}", f"lacks {counted(missing, 'signature')} of its keys", remedy)
