"""Catalogue of releases in the database: published releases that verify, from which rollouts are made."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial

from tuf.api.metadata import TargetFile, Targets

from fleet import events
from fleet.controller.database import leader, releases
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.errors import ConflictError, RefusedError
from fleet.controller.database.releases import KnownRelease, StoredRelease
from fleet.disk import read_bounded
from fleet.publisher.releases import signed_floor
from fleet.publisher.repository import Published, publication_mark, target_file
from fleet.publisher.roles import ROOT, SNAPSHOT, TARGETS, TIMESTAMP, delegated_roles, quorum
from fleet.publisher.verify import release_findings
from fleet.publisher.workspace import Workspace
from gateway.common.domain.assignment import Target
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.release_documents import read_release_document
from gateway.common.domain.release_paths import is_release, parse_written
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.paths import release_path
from gateway.common.trust.targets import check_floor, read_withdrawal

RETRY = timedelta(seconds=60)
"""Pause before a publication that could not be read is read again. Another publication is read at once."""
_log = logging.getLogger(__name__)


class Catalogue:
    """Catalogue of one replica, used by its scheduler's thread.

    Replicas share the publisher's folder, or hold copies of it. What is in memory is forgotten with the leadership.
    """

    def __init__(self, database: Database, workspace: Workspace) -> None:
        self._database, self._workspace = database, workspace
        self._seen: tuple[int, ...] = ()
        self._again: datetime | None = None

    def refresh(self, now: datetime, fence: int) -> tuple[str, ...]:
        """Read the published releases if the publication changed. Return the targets that are new.

        What cannot be read is logged, and the releases known before stay. Raise AwayError, FencedError.
        """
        seen = publication_mark(self._workspace.public)
        due = self._again is not None and not self._again - RETRY <= now < self._again
        if not seen or (seen == self._seen and not due):
            return ()  # a folder that is not there now withdraws nothing
        fresh: tuple[str, ...] = ()
        try:
            fresh = synchronise(self._database, self._workspace, now, fence)
            self._again = None
        except (ConfigurationError, ConflictError, RefusedError) as error:
            _log.warning(events.RELEASES_NOT_READ, error)
            self._again = now + RETRY
        self._seen = seen
        return fresh

    def forget(self) -> None:
        """Forget what was read: another leader may have read another copy since."""
        self._seen, self._again = (), None


def synchronise(database: Database, workspace: Workspace, now: datetime, fence: int) -> tuple[str, ...]:
    """Make the database match what is published. Return the targets that are new.

    `fence`: fencing token of the leader. Raise ConfigurationError, ConflictError, RefusedError, AwayError, FencedError.
    """
    published = workspace.published()
    with database.read() as connection:
        known = {entry.release.target: entry.release for entry in _all(connection, database)}
    found = [*verified_releases(published, workspace, known)]
    with database.write() as connection:
        leader.guard(connection, fence)
        return releases.synchronise(connection, found, now, database.settings)


def verified_releases(
    published: Published, workspace: Workspace, known: Mapping[str, StoredRelease]
) -> Iterator[StoredRelease]:
    """Yield every release that its owner signed and the owner's delegation covers.

    Releases in `known` are not read again. What does not verify is logged and left out. Raise ConfigurationError if the
    top-level metadata is incomplete or not signed by its keys.
    """
    for path, target in sorted(_verified_targets(published)):
        before = known.get(path)
        if before and (before.digest, before.floor) == (target.hashes["sha256"], signed_floor(target)):
            yield before
            continue
        try:
            yield _read(workspace, target)
        except (ConfigurationError, ValueError, OSError) as error:
            _log.warning(events.RELEASE_EXCLUDED, path, error)


def usable(connection: Connection, target: str) -> str:
    """Return why a release must not be assigned, or "" if it may be.

    It must not be if it is not published (as all replicas know it), withdrawn, or below its owner's floor (as devices
    check it).
    """
    found = releases.find(connection, target)
    if found is None or found.withdrawn:
        gone = "withdrawn, or not published any more"
        return f"{target} is " + (gone if found else "not published; GET /v1/releases lists what is")
    try:
        check_floor(target, partial(releases.floor, connection))
    except Distrust as error:
        return str(error)
    return ""


def resolve(connection: Connection, named: str) -> Target:
    """Return the release that is named by its path, or as acme/meter-reader/2.

    Raise RefusedError if no such release is published, ConflictError if it must not be assigned.
    """
    path = _path(named)
    found = releases.find(connection, path)
    if found is None:
        remedy = "edge-fleet releases list (GET /v1/releases) shows those there are"
        raise RefusedError(f"no release {path!r:.300} is published; {remedy}")
    if why := usable(connection, path):
        raise ConflictError(why)
    return Target(path, found.release.size_bytes, found.release.digest)


def _path(named: str) -> str:
    """Return the path of a release. Raise RefusedError if `named` has neither form."""
    if is_release(named):
        return named
    try:
        return parse_written(named).path
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _verified_targets(published: Published) -> Iterator[tuple[str, TargetFile]]:
    root, targets = published.root, published.targets
    top = {TIMESTAMP: published.timestamp, SNAPSHOT: published.snapshot, TARGETS: targets, ROOT: root}
    if not root or not targets or not published.snapshot:
        raise ConfigurationError("the repository is not complete; see edge-fleet verify")
    for role, metadata in top.items():
        if metadata is not None and quorum(root.signed, role).missing(metadata):  # type: ignore[arg-type]
            raise ConfigurationError(f"{role} is not signed by its keys; see edge-fleet verify")
    for name, delegated in delegated_roles(targets.signed).items():
        owner = published.roles.get(name)
        if owner is None or not any(is_release(path) for path in delegated.paths or ()):
            continue
        listed = published.snapshot.signed.meta[f"{name}.json"].version
        if quorum(targets.signed, name).missing(owner) or owner.signed.version != listed:
            _log.warning(events.ROLE_EXCLUDED, name)
            continue
        signed: Targets = owner.signed
        mine = ((path, target) for path, target in signed.targets.items() if delegated.is_delegated_path(path))
        yield from ((path, target) for path, target in mine if not _is_withdrawn(target))


def _is_withdrawn(target: TargetFile) -> bool:
    try:
        return read_withdrawal(target) is not None
    except Distrust as error:
        _log.warning(events.RELEASE_EXCLUDED, target.path, error)
        return True


def _read(workspace: Workspace, target: TargetFile) -> StoredRelease:
    file = workspace.public / target_file(target)
    content = read_bounded(file, workspace.settings.document_limit_bytes)
    if len(content) != target.length or hashlib.sha256(content).hexdigest() != target.hashes["sha256"]:
        raise ConfigurationError("is not what its owner signed", file=str(file))
    release = read_release_document(target.path, content)
    if findings := [*release_findings(target, release)]:
        raise ConfigurationError(findings[0].problem, file=str(file))
    named = release_path(target.path)
    row = (named.owner, named.model, release.version, release.floor)
    digest, document = target.hashes["sha256"], json.loads(content)
    return StoredRelease(target.path, *row, digest, target.length, release.released_at, document)


def _all(connection: Connection, database: Database) -> Iterable[KnownRelease]:
    after, limit_rows = "", database.settings.page_limit_rows
    while page := releases.page(connection, database.settings, after=after, limit_rows=limit_rows):
        yield from page
        after = page[-1].release.target
