"""Published metadata that the director needs, read when it changed and used by every poll."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from fleet import events
from fleet.controller.database import desired, releases
from fleet.controller.database.engine import Connection, Database
from fleet.disk import read_bounded
from fleet.publisher.assignments import assigned
from fleet.publisher.repository import Published, metadata_file, publication_mark
from fleet.publisher.roles import DIRECTOR, POLICY, PROFILES, ROOT, Quorum, owner_role, quorum
from fleet.publisher.workspace import Workspace
from gateway.common.domain.assignment import Target
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.targets import check_floor, floor_of, read_withdrawal

_log = logging.getLogger(__name__)
NOTHING = "nothing is published yet; let the publisher run edge-fleet publish"
JUDGED_S = 0.5
"""Greatest age in seconds of the list of barred releases when an assignment is to be signed."""


@dataclass(frozen=True, slots=True)
class PublishedMetadata:
    """Published metadata.

    `root`: the newest, as signed. `files`: profiles and policies, which every device is assigned. `director`: the keys
    that sign assignments. `barred`: desired releases that must not be assigned, by path and digest. `basis`: digest of
    what an assignment depends on besides the desired state.
    """

    published: Published
    root: bytes
    files: tuple[Target, ...]
    director: Quorum
    barred: frozenset[tuple[str, str]] = frozenset()
    basis: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute `basis`."""
        files = [(file.path, file.size_bytes, file.sha256) for file in self.files]
        keys = [self.director.threshold, *sorted(key.keyid for key in self.director.keys)]
        text = json.dumps([files, keys, sorted(self.barred)])
        object.__setattr__(self, "basis", hashlib.sha256(text.encode()).hexdigest()[:32])

    def refusal(self, connection: Connection, path: str, digest: str) -> str:
        """Return why this release must not be assigned, or "" if it may be."""
        found = self.published.target(path)
        if found is None:
            return "it is not published any more"
        if not self.signs(path, digest):
            return "another release is published in its place"
        try:
            if read_withdrawal(found):
                return "its owner withdrew it"
            check_floor(path, lambda owner, model: self._floor(connection, owner, model))
        except Distrust as error:
            return str(error)
        return ""

    def signs(self, path: str, digest: str) -> bool:
        """Return whether this release is published with this digest."""
        found = self.published.target(path)
        return found is not None and found.hashes.get("sha256") == digest

    def assigned(self, path: str) -> Target:
        """Return a release that may be assigned, as it is signed."""
        return assigned(self.published, path)

    def _floor(self, connection: Connection, owner: str, model: str) -> str:
        """Return the greatest floor that is published, or that ever was."""
        role = self.published.roles.get(owner_role(owner))
        known = releases.floor(connection, owner, model)
        return floor_of(role.signed, owner, model, known) if role else known


class Publications:
    """Cache of the publication. One per process; any thread may call it."""

    def __init__(
        self,
        workspace: Workspace,
        database: Database,
        every_s: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workspace, self._database = workspace, database
        self._every_s, self._monotonic = every_s, monotonic
        self._lock = threading.Lock()
        self._known: PublishedMetadata | None = None
        self._mark: tuple[int, ...] = ()
        self._damaged: tuple[int, ...] = ()
        self._looked_s = self._judged_s = float("-inf")

    @property
    def workspace(self) -> Workspace:
        """Return the publisher's folder that is read."""
        return self._workspace

    def current(self) -> PublishedMetadata:
        """Return what the present timestamp names, read at most `published_every_s` ago.

        While one thread reads it again, others use what was known, unless another timestamp is published: then they
        wait. Raise RequestError UNAVAILABLE if nothing is published or it cannot be read, AwayError.
        """
        replaced = self._is_replaced()  # first: a thread that reads it meanwhile sets what is known before the mark
        known = self._known
        if known and self._monotonic() - self._looked_s < self._every_s and not replaced:
            return known
        if not self._lock.acquire(blocking=known is None or replaced):
            return known or self.fresh()
        try:
            if self._known and replaced and not self._is_replaced():  # another thread has read it in the meantime
                return self._known
            return self._current()
        except RequestError:
            if known is None:
                raise
            self._looked_s, self._damaged = self._monotonic(), publication_mark(self._workspace.public)
            _log.warning(events.PUBLICATION_NOT_READ, exc_info=True)
            return known
        finally:
            self._lock.release()

    def fresh(self) -> PublishedMetadata:
        """Return the publication as it is now, to sign by it. Raise what `current` raises."""
        with self._lock:
            return self._current()

    def _is_replaced(self) -> bool:
        """Return whether another timestamp is published.

        A device that read it refuses what an old director's key signed.
        """
        return publication_mark(self._workspace.public) not in {self._mark, self._damaged}

    def _current(self) -> PublishedMetadata:
        mark = publication_mark(self._workspace.public)
        root = self._known.published.root if self._known else None
        if (
            self._known is None
            or mark != self._mark
            or root is None
            or (self._workspace.public / metadata_file(ROOT, root.signed.version + 1)).exists()
        ):
            self._known, self._mark = self._with_barred(_read(self._workspace)), mark
        elif self._monotonic() - self._judged_s >= JUDGED_S:
            self._known = self._with_barred(self._known)
        self._looked_s = self._monotonic()
        return self._known

    def _with_barred(self, found: PublishedMetadata) -> PublishedMetadata:
        with self._database.read() as connection:
            wanted = desired.targets(connection)
            barred = frozenset(pair for pair in wanted if found.refusal(connection, *pair))
        self._judged_s = self._monotonic()
        return replace(found, barred=barred)


def _read(workspace: Workspace) -> PublishedMetadata:
    try:
        published = workspace.published()
        if published.root is None or published.targets is None:
            raise RequestError(Fault.UNAVAILABLE, NOTHING)
        name = metadata_file(ROOT, published.root.signed.version)
        root = read_bounded(workspace.public / name, workspace.settings.document_limit_bytes)
        roles = [published.roles[name].signed for name in (PROFILES, POLICY) if name in published.roles]
        return PublishedMetadata(
            published,
            root,
            tuple(
                Target(path, file.length, file.hashes["sha256"])
                for role in roles
                for path, file in sorted(role.targets.items())
            ),
            quorum(published.targets.signed, DIRECTOR),
        )
    except (ConfigurationError, OSError) as error:
        problem = f"the published repository cannot be read: {error!s:.400}"
        raise RequestError(Fault.UNAVAILABLE, problem) from None
