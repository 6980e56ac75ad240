"""Publishing: which metadata comes next, and in which order it may appear, so that a stop anywhere harms no device.

The order is: blobs and targets, delegated roles, targets metadata, snapshot, and in one rename the timestamp. Until
then no device reads the others. A new root, which all devices read at once, comes after it: what precedes is signed for
the old root and for the new one. If old keys are lost, that is impossible; between the two files devices keep what they
have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, cast

from securesystemslib.signer import Signer
from tuf.api.metadata import Metadata, MetaFile, Root, Snapshot, TargetFile, Targets, Timestamp

from fleet.publisher.drafts import Draft
from fleet.publisher.repository import METADATA, TIMESTAMP_FILE, Published, metadata_file
from fleet.publisher.roles import ONLINE, ROOT, SNAPSHOT, TARGETS, TIMESTAMP, add_signature, delegated_roles, quorum
from fleet.publisher.settings import FleetSettings
from fleet.publisher.signing import NOTHING
from gateway.common.domain.errors import ConfigurationError
from gateway.common.terminal.tables import counted

RENEW_SHARE = 0.5
"""A snapshot is signed again, though nothing changed, if less than this share of its life is left."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Plan of a publication.

    `files`: metadata in the order in which it must be written, by name. `state`: what is published afterwards.
    `targets` are new: their content must be there first. `roles`: whose drafts are in it. `waiting`: why other drafts
    wait, by role.
    """

    files: tuple[tuple[str, bytes], ...]
    state: Published
    targets: tuple[TargetFile, ...]
    roles: tuple[str, ...]
    waiting: Mapping[str, str]

    @property
    def versions(self) -> Mapping[str, int]:
        """Return the published versions, by role."""
        return {role: document.signed.version for role in self.roles if (document := self.state.document(role))}


def plan_publication(
    published: Published, drafts: Iterable[Draft], signers: Sequence[Signer], now: datetime, settings: FleetSettings
) -> Publication:
    """Return what to write: every draft that is ready, and the online roles.

    Raise ConfigurationError if the result would not be a repository that devices trust.
    """
    ready, waiting = choose_ready(published, drafts, now)
    offline = with_drafts(published, ready)
    for role in (ROOT, TARGETS):
        if offline.document(role) is None:
            problem = f"the draft of {role} waits: {waiting[role]}" if role in waiting else NOTHING
            raise ConfigurationError(problem)
    roots = [root.signed for root in (published.root, offline.root) if root]
    # A snapshot only where something changed or its time runs out, and always a new timestamp.
    snapshot = _next_snapshot(published, offline, now, settings)
    if snapshot is not published.snapshot:
        _sign(snapshot, SNAPSHOT, roots, signers)
    version = published.timestamp.signed.version + 1 if published.timestamp else 1
    timestamp = Metadata(
        Timestamp(
            version=version,
            expires=now + timedelta(days=settings.timestamp_expiry_d),
            snapshot_meta=MetaFile(snapshot.signed.version),
        )
    )
    _sign(timestamp, TIMESTAMP, roots, signers)
    state = Published(offline.root, timestamp, snapshot, offline.targets, offline.roles)
    check_signatures(state, cast("Metadata[Root]", state.root).signed)
    return Publication(
        tuple(_files(published, state)), state, tuple(_new_targets(published, state)), tuple(ready), waiting
    )


def choose_ready(
    published: Published, drafts: Iterable[Draft], now: datetime
) -> tuple[Mapping[str, Draft], Mapping[str, str]]:
    """Return the drafts that can be published together now, by role, and why the others have to wait."""
    open_drafts = [draft for draft in drafts if not is_published(draft, published)]
    waiting = {draft.role: why for draft in open_drafts if (why := _obstacle(draft, published, now))}
    ready = {draft.role: draft for draft in open_drafts if draft.role not in waiting}
    while conflict := _conflict(published, ready):
        role, why = conflict
        del ready[role]
        waiting[role] = why
    return ready, waiting


def is_published(draft: Draft, published: Published) -> bool:
    """Return whether an earlier run, perhaps a killed one, published this very document."""
    standing = published.document(draft.role)
    return standing is not None and standing.signed_bytes == draft.metadata.signed_bytes


def online_roots(published: Published, drafts: Mapping[str, Draft]) -> list[Root]:
    """Return the roots whose online keys sign: during a change the published one and the drafted one."""
    roots = [published.root, drafts[ROOT].metadata if ROOT in drafts else None]
    return [cast("Root", root.signed) for root in roots if root]


def check_signatures(state: Published, root: Root) -> None:
    """Check every threshold from `root` down.

    Raise ConfigurationError that says which one is not met and what to do.
    """
    top = {TARGETS: state.targets, SNAPSHOT: state.snapshot, TIMESTAMP: state.timestamp}
    for role, metadata in top.items():
        if metadata is None:
            raise ConfigurationError(f"{role} was never signed; sign its draft with edge-fleet sign, then publish")
        _check_threshold(root, role, metadata)
    targets = cast("Metadata[Targets]", state.targets).signed
    for role, owner in state.roles.items():
        _check_threshold(targets, role, owner)


def _check_threshold(delegator: Root | Targets, role: str, metadata: Metadata[Any]) -> None:
    missing = quorum(delegator, role).missing(metadata)
    if missing:
        remedy = f"renew {role} (edge-fleet renew), have it signed, and publish both together"
        if role in ONLINE:
            remedy = "name its keys with --key, or keep them in the folder keys"
        raise ConfigurationError(
            f"{role} {metadata.signed.version} lacks {counted(missing, 'signature')} of its keys; {remedy}"
        )


def _obstacle(draft: Draft, published: Published, now: datetime) -> str:
    """Return why a draft cannot be published, whatever the others are ("": it can)."""
    standing = published.document(draft.role)
    expected = standing.signed.version + 1 if standing else 1
    if draft.metadata.signed.version != expected:
        version = draft.metadata.signed.version
        return f"it is version {version}, {expected} comes next: another was published since, make the change again"
    if draft.missing:
        return f"it lacks {counted(draft.missing, 'signature')}: edge-fleet sign drafts/{draft.role}.json"
    return "it has expired: make the change again" if draft.metadata.signed.is_expired(now) else ""


def _conflict(published: Published, ready: Mapping[str, Draft]) -> tuple[str, str] | None:
    """Return a draft that must wait for another, and why: a role's keys and what it signed change together."""
    state = with_drafts(published, ready)
    for delegator, role, metadata in _signed_offline(state):
        if delegator is None or not quorum(delegator.signed, role).missing(metadata):
            continue
        above = ROOT if role == TARGETS else TARGETS
        if above in ready:
            return above, f"it changes who signs {role}, which these keys have not signed yet"
        if role in ready:
            return role, f"it is not signed by the keys that {above} names; make it again, or publish {above} first"
    return None


def _signed_offline(state: Published) -> Iterator[tuple[Metadata[Root] | Metadata[Targets] | None, str, Metadata[Any]]]:
    if state.targets:
        yield state.root, TARGETS, state.targets
    for role, metadata in state.roles.items():
        known = role in delegated_roles(state.targets.signed if state.targets else None)
        yield (state.targets if known else None), role, metadata


def with_drafts(published: Published, drafts: Mapping[str, Draft]) -> Published:
    """Return what is published, with these drafts in place of the documents of their roles."""
    ready = {role: draft.metadata for role, draft in drafts.items()}
    return replace(
        published,
        root=cast("Any", ready.get(ROOT, published.root)),
        targets=cast("Any", ready.get(TARGETS, published.targets)),
        roles=cast("Any", {**published.roles, **{r: m for r, m in ready.items() if r not in {ROOT, TARGETS}}}),
    )


def _next_snapshot(
    published: Published, offline: Published, now: datetime, settings: FleetSettings
) -> Metadata[Snapshot]:
    everything = {TARGETS: offline.targets, **offline.roles}
    meta = {f"{role}.json": MetaFile(metadata.signed.version) for role, metadata in everything.items() if metadata}
    standing, life = published.snapshot, timedelta(days=settings.snapshot_expiry_d)
    if (
        standing is not None
        and standing.signed.meta == meta
        and standing.signed.expires - now > life * RENEW_SHARE
        and not quorum(cast("Metadata[Root]", offline.root).signed, SNAPSHOT).missing(cast("Any", standing))
    ):
        return standing
    version = standing.signed.version + 1 if standing else 1
    return Metadata(Snapshot(version=version, expires=now + life, meta=meta))


def _sign(metadata: Metadata[Any], role: str, roots: Iterable[Root], signers: Iterable[Signer]) -> None:
    """Sign with every given key that the old root or the new one names, so that either verifies it."""
    wanted = {keyid for root in roots for keyid in root.roles[role].keyids}
    for signer in signers:
        if signer.public_key.keyid in wanted:
            add_signature(metadata, signer)


def _files(published: Published, state: Published) -> Iterator[tuple[str, bytes]]:
    for role, metadata in state.roles.items():
        if metadata is not published.roles.get(role):
            yield metadata_file(role, metadata.signed.version), metadata.to_bytes()
    for role, new, old in ((TARGETS, state.targets, published.targets), (SNAPSHOT, state.snapshot, published.snapshot)):
        if new is not None and new is not old:
            yield metadata_file(role, new.signed.version), cast("Metadata[Any]", new).to_bytes()
    yield f"{METADATA}/{TIMESTAMP_FILE}", cast("Metadata[Timestamp]", state.timestamp).to_bytes()
    if state.root is not None and state.root is not published.root:
        yield metadata_file(ROOT, state.root.signed.version), state.root.to_bytes()


def _new_targets(published: Published, state: Published) -> Iterator[TargetFile]:
    for role in delegated_roles(state.targets.signed if state.targets else None):
        before = published.roles[role].signed.targets if role in published.roles else {}
        after = state.roles[role].signed.targets if role in state.roles else {}
        yield from (target for path, target in after.items() if before.get(path) != target)
