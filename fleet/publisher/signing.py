"""Next documents of roles, as drafts for their key holders. Pure: published state in, draft out."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import cast

from securesystemslib.signer import Signer
from tuf.api.metadata import Key, Metadata, Root, TargetFile, Targets

from fleet.publisher.drafts import Document, Draft
from fleet.publisher.repository import ASSIGNMENTS, Published
from fleet.publisher.roles import (
    DIRECTOR,
    ONLINE,
    POLICY,
    PROFILES,
    ROOT,
    SNAPSHOT,
    TARGETS,
    TIMESTAMP,
    Quorum,
    add_signature,
    quorum,
    with_delegation,
    with_root_role,
)
from fleet.publisher.settings import FleetSettings
from gateway.common.domain.errors import ConfigurationError

NOTHING = "there is no repository here; begin with edge-fleet repo init"


@dataclass(frozen=True, slots=True)
class Drafting:
    """Inputs of a draft: the repository, the drafts that wait (by role), the time, the settings."""

    published: Published
    drafts: Mapping[str, Draft]
    now: datetime
    settings: FleetSettings = FleetSettings()

    def newest(self, role: str) -> Document | None:
        """Return the drafted document, else the published one."""
        draft = self.drafts.get(role)
        return draft.metadata if draft else self.published.document(role)

    def threshold(self, role: str) -> int | None:
        """Return how many signatures a role's documents need now, or None for a new role."""
        root, targets = self.newest(ROOT), self.newest(TARGETS)
        delegated = targets.signed.delegations if targets and isinstance(targets.signed, Targets) else None
        top = root.signed.roles if root and isinstance(root.signed, Root) else {}
        found = top.get(role) or (delegated.roles or {} if delegated else {}).get(role)
        return found.threshold if found else None

    def draft(self, role: str, signed: Root | Targets, documents: Mapping[str, bytes] | None = None) -> Draft:
        """Return `signed` with its version and expiry set, as a draft; signatures of an earlier draft are void."""
        previous, waiting = self.published.document(role), self.drafts.get(role)
        signed.version = previous.signed.version + 1 if previous else 1
        signed.expires = self.now + timedelta(days=expiry_d(role, self.settings))
        metadata = cast("Document", Metadata(signed))
        known = {**(waiting.documents if waiting else {}), **(documents or {})}
        return Draft(role, metadata, self.quorums(role, signed), previous, known)

    def quorums(self, role: str, signed: Root | Targets) -> tuple[Quorum, ...]:
        """Return the quorums for the role's next document, by the newest delegations."""
        if isinstance(signed, Root):
            new = quorum(signed, ROOT, "the keys of root")
            if self.published.root is None:
                return (new,)
            old = quorum(self.published.root.signed, ROOT, "the keys of root as published")
            return (
                (old,)
                if (old.keys, old.threshold) == (new.keys, new.threshold)
                else (old, replace(new, purpose="its new keys"))
            )
        delegator = self.newest(ROOT if role == TARGETS else TARGETS)
        if delegator is None:
            raise ConfigurationError(NOTHING)
        required = quorum(delegator.signed, role, f"the keys of {role}")
        if role != TARGETS or self.published.root is None:
            return (required,)
        before = quorum(
            self.published.root.signed, role, "the keys before the change: no gap for devices", optional=True
        )
        return (required,) if before.keys == required.keys else (required, before)


@dataclass(frozen=True, slots=True)
class Beginning:
    """Keys and thresholds of a new repository. `online` signs snapshot and timestamp, `director` assignments."""

    root: Sequence[Key]
    targets: Sequence[Key]
    online: Sequence[Key]
    director: Sequence[Key]
    root_threshold: int = 2
    targets_threshold: int = 1


def begin(drafting: Drafting, beginning: Beginning) -> tuple[Draft, Draft]:
    """Draft the first root and the first targets. The keys of targets also sign profiles and policies at first."""
    if drafting.published.root or drafting.drafts:
        raise ConfigurationError("there is a repository here already; name an empty folder with --dir")
    root = Root(consistent_snapshot=True)
    root = with_root_role(root, ROOT, beginning.root, beginning.root_threshold)
    root = with_root_role(root, TARGETS, beginning.targets, beginning.targets_threshold)
    for role in ONLINE:
        root = with_root_role(root, role, beginning.online, 1)
    first = drafting.draft(ROOT, root)
    targets = Targets()
    for role in (PROFILES, POLICY):
        targets = with_delegation(targets, role, beginning.targets, beginning.targets_threshold)
    targets = with_delegation(targets, DIRECTOR, beginning.director, 1)
    return first, replace(drafting, drafts={ROOT: first}).draft(TARGETS, targets)


def delegate(drafting: Drafting, role: str, keys: Sequence[Key], threshold: int) -> tuple[Draft, ...]:
    """Give a delegated role these keys: draft the next targets, and with them the role's own document."""
    targets = drafting.draft(TARGETS, with_delegation(_targets(drafting, TARGETS), role, keys, threshold))
    return (targets, *_signed_anew(drafting, targets, role))


def rotate(drafting: Drafting, role: str, keys: Sequence[Key], threshold: int) -> tuple[Draft, ...]:
    """Replace the keys of any role. Root N+1 is signed by the thresholds of root N and of itself (TUF 6.1)."""
    if role not in {ROOT, TARGETS, *ONLINE}:
        if drafting.newest(TARGETS) is not None:
            quorum(_targets(drafting, TARGETS), role)
        return delegate(drafting, role, keys, threshold)
    root = drafting.newest(ROOT)
    if root is None:
        raise ConfigurationError(NOTHING)
    changed = drafting.draft(ROOT, with_root_role(cast("Root", root.signed), role, keys, threshold))
    return (changed, *_signed_anew(drafting, changed, role)) if role == TARGETS else (changed,)


def renew(drafting: Drafting, role: str) -> Draft:
    """Draft the same document with a new expiry."""
    if role in ONLINE:
        raise ConfigurationError(f"{role} is signed again whenever edge-fleet publish runs")
    newest = drafting.newest(role)
    if newest is None:
        raise ConfigurationError(f"nothing is published for {role!r:.150}, so there is nothing to sign again")
    return drafting.draft(role, copy.deepcopy(newest.signed))


def add_targets(drafting: Drafting, role: str, added: Sequence[tuple[TargetFile, bytes]]) -> Draft:
    """Draft the role's next document with these targets added or replaced; their content is shown to signers."""
    targets = _targets(drafting, role)
    targets.targets |= {target.path: target for target, _ in added}
    return drafting.draft(role, targets, {target.path: content for target, content in added})


def signed_with(draft: Draft, signer: Signer) -> Draft:
    """Return the draft with one more signature. Raise ConfigurationError for a key that cannot sign it."""
    if signer.public_key.keyid not in draft.keys:
        raise ConfigurationError(
            f"the key {signer.public_key.keyid[:8]} cannot sign {draft.role}; the draft names its key holders"
        )
    metadata = cast("Document", Metadata(draft.metadata.signed, dict(draft.metadata.signatures)))
    add_signature(metadata, signer)
    return replace(draft, metadata=metadata)


def _signed_anew(drafting: Drafting, changed: Draft, role: str) -> tuple[Draft, ...]:
    """Draft what the role has published again: if its keys changed, the new ones must sign it."""
    later = replace(drafting, drafts={**drafting.drafts, changed.role: changed})
    return (renew(later, role),) if later.newest(role) else ()


def _targets(drafting: Drafting, role: str) -> Targets:
    newest = drafting.newest(role)
    return copy.deepcopy(cast("Targets", newest.signed)) if newest else Targets()


def expiry_d(what: str, settings: FleetSettings) -> float:
    """Return the validity of a role's document, or of an assignment, in days."""
    if what.startswith(f"{ASSIGNMENTS}/"):
        return settings.assignment_expiry_h / 24
    days = {
        ROOT: settings.root_expiry_d,
        TARGETS: settings.targets_expiry_d,
        SNAPSHOT: settings.snapshot_expiry_d,
        TIMESTAMP: settings.timestamp_expiry_d,
    }
    return days.get(what, settings.owner_expiry_d)
