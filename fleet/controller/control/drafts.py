"""Drafts of the publisher's folder, changed over the API: uploaded, signed, withdrawn.

Uploads are not trusted: `fleet.publisher.draft_rules` checks them, and files must be stored before a draft may name
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import cast

from securesystemslib.signer import Signature
from tuf.api.metadata import Metadata

from fleet.controller.audit import Deed
from fleet.controller.control.concurrency_limit import ConcurrencyLimit
from fleet.controller.control.folder_problems import LOCKED_RETRY_S, folder_lock, folder_problems
from fleet.controller.control.settings import DraftSettings
from fleet.controller.database import audit, watching
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AbsentError
from fleet.controller.problems import ProblemError
from fleet.disk import read_bounded
from fleet.problem_types import DRAFT_OUTDATED, DRAFT_REFUSED, PRIVATE_KEY_REFUSED, SIGNATURE_REFUSED
from fleet.publisher.draft_rules import (
    OutdatedError,
    PrivateKeyError,
    SignatureRefusedError,
    accepted_draft,
    check_no_private_key,
    new_targets,
    with_signatures,
)
from fleet.publisher.drafts import Document, Draft, draft_bytes, read_draft
from fleet.publisher.impact import Impact, impacts
from fleet.publisher.publish import choose_ready, with_drafts
from fleet.publisher.repository import blob_file
from fleet.publisher.roles import signer_name
from fleet.publisher.signing import Drafting
from fleet.publisher.software import named_files
from fleet.publisher.workspace import Workspace
from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.common.domain.release_documents import read_release_document
from gateway.common.domain.release_paths import is_release
from gateway.common.domain.signed_release import SignedRelease, declared, disagreement

MISSING_SHOWN = 5
"""Largest number of digests of missing files that a refusal names."""


@dataclass(frozen=True, slots=True)
class DraftState:
    """Draft that waits. `waits`: why it cannot be published, "" if it can; `concerns`: its effect on devices."""

    draft: Draft
    waits: str
    concerns: tuple[Impact, ...]


Check = Callable[[Draft | None], object]
"""Check of the waiting draft before it is changed. It raises the refusal of a change."""


class Drafts:
    """Drafts of a controller: one per process, for any thread. Replicas may share the folder."""

    def __init__(self, database: Database, workspace: Workspace, settings: DraftSettings) -> None:
        self.database, self.workspace, self.settings = database, workspace, settings
        self._limit = ConcurrencyLimit(1, settings.lock_wait_s)

    def drafting(self, now: datetime) -> Drafting:
        """Read what is published and what waits. Raise RequestError UNAVAILABLE."""
        try:
            return self.workspace.drafting(now)
        except ConfigurationError as error:
            problem = f"the publisher's folder cannot be read: {error}"
            raise RequestError(Fault.UNAVAILABLE, problem) from error

    def waiting(self, now: datetime) -> tuple[tuple[Draft, str], ...]:
        """Return all waiting drafts by role, each with why it waits. Raise RequestError UNAVAILABLE."""
        drafting = self.drafting(now)
        waits = _obstacles(drafting)
        return tuple((draft, waits.get(role, "")) for role, draft in sorted(drafting.drafts.items()))

    def draft(self, role: str, now: datetime) -> Draft:
        """Return the draft of a role. Raise AbsentError, RequestError UNAVAILABLE."""
        return _required(self.drafting(now), role)

    def find(self, role: str, now: datetime) -> DraftState:
        """Return the draft of a role and its effect. Raise AbsentError, RequestError UNAVAILABLE, AwayError."""
        drafting = self.drafting(now)
        return self._state(drafting, _required(drafting, role))

    def running(self) -> Mapping[tuple[str, str], int]:
        """Return the number of devices that run each release, by slot and path. Raise AwayError."""
        with self.database.read() as connection:
            return watching.running_by_slot(connection)

    def put(self, role: str, content: bytes, by: str, now: datetime, *, replaces: bool, check: Check) -> DraftState:
        """Store an uploaded draft. A copy of the waiting draft adds its signatures to it.

        `replaces`: the caller named the state of the draft that this one replaces. Raise ProblemError, and
        what `check` raises.
        """
        with _refusals():
            check_no_private_key(content)
            uploaded = read_draft(content, "the draft")
            check_no_private_key(draft_bytes(uploaded))  # JSON may have escaped it
            if uploaded.role != role:
                raise ConfigurationError(f"the draft is of {uploaded.role}, it was sent to {role!r:.140}")
        with self.changing(by, now) as drafting:
            waiting = drafting.drafts.get(role)
            check(waiting)
            with _refusals():
                draft = _joined(drafting, uploaded, waiting, replaces=replaces)
                self._check_files(draft)
                details = {"version": draft.metadata.signed.version, "document": draft.document}
                self._save(draft, Deed(by, "drafts.upload", role, details), now)
            return self._state(drafting, draft)

    def sign(
        self, role: str, document: str, signatures: Mapping[str, str], by: str, now: datetime, *, check: Check
    ) -> DraftState:
        """Add signatures (hex, by key id) over `document`, a digest. Raise AbsentError, ProblemError."""
        with self.changing(by, now) as drafting:
            waiting = _required(drafting, role)
            check(waiting)
            if waiting.document != document:
                problem = f"the draft of {role} that waits is {waiting.document}, not {document:.64}"
                raise ProblemError(DRAFT_OUTDATED.status, f"{problem}; sign the current one", kind=DRAFT_OUTDATED)
            sent = {keyid: Signature(keyid, text) for keyid, text in signatures.items()}
            with _refusals():
                returned = replace(waiting, metadata=cast("Document", Metadata(waiting.metadata.signed, sent)))
                draft = with_signatures(waiting, returned)
                names = [signer_name(draft.keys[keyid]) for keyid in signatures]
                deed = Deed(by, "drafts.sign", role, {"document": document, "keys": names})
                self._save(draft, deed, now)
            return self._state(drafting, draft)

    def discard(self, role: str, by: str, now: datetime, *, check: Check) -> DraftState:
        """Remove a draft. Return it. Raise AbsentError, and what `check` raises."""
        with self.changing(by, now) as drafting:
            waiting = _required(drafting, role)
            check(waiting)
            state = self._state(drafting, waiting)
            with self.database.write() as connection:
                audit.append(connection, Deed(by, "drafts.delete", role, {"document": waiting.document}), now)
                self.workspace.discard(role)
            return state

    @contextmanager
    def changing(self, by: str, now: datetime) -> Iterator[Drafting]:
        """Hold the folder's lock and read the drafts. One request works, and one waits.

        Raise RequestError OVERLOADED, UNAVAILABLE, ProblemError.
        """
        with folder_problems(self.workspace, self.settings), ExitStack() as stack:
            if not stack.enter_context(self._limit.entered(by)):
                problem = "other requests change drafts; send it again"
                raise RequestError(Fault.OVERLOADED, problem, retry_after_s=LOCKED_RETRY_S)
            stack.enter_context(folder_lock(self.workspace.folder, self.settings.lock_wait_s))
            yield self.drafting(now)

    def _state(self, drafting: Drafting, draft: Draft) -> DraftState:
        """Return the state of one draft in relation to the other waiting drafts. Raise AwayError."""
        published, later = drafting.published, replace(drafting, drafts={**drafting.drafts, draft.role: draft})
        found = tuple(impacts(self.running(), published, with_drafts(published, {draft.role: draft})))
        return DraftState(draft, _obstacles(later).get(draft.role, ""), found)

    def _save(self, draft: Draft, deed: Deed, now: datetime) -> None:
        size_bytes, limit_bytes = len(draft_bytes(draft)), self.workspace.settings.document_limit_bytes
        if size_bytes > limit_bytes:
            problem = f"has {size_bytes} bytes as a file, at most {limit_bytes} are accepted"
            raise ConfigurationError(f"{problem}; publish what waits first")
        with self.database.write() as connection:
            audit.append(connection, deed, now)
            for target in new_targets(draft):
                if target.path in draft.documents:
                    self.workspace.stage(target, draft.documents[target.path])
            self.workspace.save([draft])

    def _check_files(self, draft: Draft) -> None:
        """Check that every file of new releases is stored, and that manifests agree with what is signed."""
        for target in new_targets(draft):
            content = draft.documents.get(target.path)
            if content is None or not is_release(target.path):
                continue
            release = read_release_document(target.path, content)
            missing = [file.sha256 for file in named_files(release) if not self.workspace.has_blob(file)]
            if missing:
                listed = ", ".join(missing[:MISSING_SHOWN])
                raise ConfigurationError(
                    f"{len(missing)} files of {target.path} are not here: {listed}; upload them first"
                )
            if isinstance(release, SignedRelease):
                places = [
                    root / blob_file(release.manifest.sha256) for root in (self.workspace.public, self.workspace.staged)
                ]
                place = next(place for place in places if place.is_file())
                try:
                    text = read_bounded(place, self.workspace.settings.document_limit_bytes).decode()
                    problem = disagreement(release, declared(release, text, release.manifest.path))
                except (UnicodeDecodeError, RecursionError) as error:
                    problem = f"its manifest cannot be read ({type(error).__name__})"
                if problem:
                    raise ConfigurationError(f"devices would refuse {release.target}: {problem}")


def _joined(drafting: Drafting, uploaded: Draft, waiting: Draft | None, *, replaces: bool) -> Draft:
    if waiting and waiting.metadata.signed_bytes == uploaded.metadata.signed_bytes:
        return with_signatures(waiting, uploaded)
    if waiting and not replaces:
        problem = f"a draft of {uploaded.role} waits already ({waiting.document}); base yours on it and send its ETag"
        raise OutdatedError(f"{problem} as If-Match, or delete it first")
    return accepted_draft(drafting, uploaded)


def _required(drafting: Drafting, role: str) -> Draft:
    if role not in drafting.drafts:
        raise AbsentError(f"no draft of {role!r:.140} waits; GET /v1/drafts lists those that do")
    return drafting.drafts[role]


def _obstacles(drafting: Drafting) -> Mapping[str, str]:
    """Return why drafts cannot be published, by role."""
    _, waiting = choose_ready(drafting.published, drafting.drafts.values(), drafting.now)
    return waiting


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise ProblemError for what the rules refuse."""
    kinds = (
        (OutdatedError, DRAFT_OUTDATED),
        (SignatureRefusedError, SIGNATURE_REFUSED),
        (PrivateKeyError, PRIVATE_KEY_REFUSED),
        (ConfigurationError, DRAFT_REFUSED),
    )
    try:
        yield
    except ConfigurationError as error:
        kind = next(kind for caught, kind in kinds if isinstance(error, caught))
        raise ProblemError(kind.status, str(error), kind=kind) from None
