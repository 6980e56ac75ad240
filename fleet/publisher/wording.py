"""Description of a draft in words for its signer. Pure.

It is derived from the signed content, not from what the draft's sender states. Unchanged parts are omitted only if the
previous version has the signer's own signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from tuf.api.metadata import Key, Metadata, Role, Root, TargetFile, Targets

from fleet.publisher.device_settings import previous_settings, settings_line, settings_lines
from fleet.publisher.drafts import Document, Draft
from fleet.publisher.files import check_content
from fleet.publisher.roles import POLICY, Quorum, delegated_roles, printable, quorum, signer_name
from fleet.publisher.software import software_line
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.policy import read_policy
from gateway.common.domain.release_documents import ReleaseDocument, read_release_document
from gateway.common.domain.release_form import TIME_FORMAT
from gateway.common.domain.release_paths import is_release
from gateway.common.domain.settings_release import SettingsRelease, read_settings_release
from gateway.common.domain.signed_release import SignedRelease
from gateway.common.domain.software_release import SoftwareRelease
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.targets import Withdrawal, check_floor, floor_of, read_withdrawal

ID_CHARS = 16
"""Displayed characters of a key's id: 64 bits, for which a collision is too expensive to find."""


def describe(draft: Draft, key: Key) -> list[str]:
    """Return what the holder of this key would sign, line by line."""
    if draft.previous and Quorum((key,), 1).signed_by(draft.previous):
        return _described(draft, draft.previous, "which this key signed")
    return _described(draft, None, "")


def describe_changes(draft: Draft) -> list[str]:
    """Return what a draft changes, line by line, if its previous version is known to be the published one."""
    return _described(draft, draft.previous, "which is published")


def _described(draft: Draft, before: Document | None, whose: str) -> list[str]:
    """Return the changes of a draft since `before` (`whose`: why that is known), or all of it."""
    signed = draft.metadata.signed
    lines = [f"{draft.role}, version {signed.version}, valid until {signed.expires:{TIME_FORMAT}}"]
    if before:
        lines.append(f"  compared with version {before.signed.version}, {whose}:")
    elif draft.previous:
        lines.append("  in full, because this key did not sign the version before:")
    changes = list(_root_changes(signed, before) if isinstance(signed, Root) else _changes(signed, before, draft))
    lines += [f"  {line}" for line in changes or ["nothing changes but the version and the time it is valid"]]
    return [printable(line) for line in lines + [f"  {line}" for line in progress_lines(draft)]]


def progress_lines(draft: Draft) -> Iterator[str]:
    """Yield per quorum the signers so far and the number of missing signatures."""
    for wanted in draft.quorums:
        signed = wanted.signed_by(draft.metadata)
        missing = wanted.missing(draft.metadata)
        standing = f"signed by {', '.join(map(signer_name, signed))}" if signed else "not signed"
        lacking = f", {missing} more {'would help' if wanted.optional else 'needed'}" if missing else ", complete"
        yield f"{wanted.purpose}: {names(wanted)}: {standing}{lacking}"


def names(wanted: Quorum) -> str:
    """Return a quorum in the form "2 of alice, bob, carol"."""
    return f"{wanted.threshold} of {', '.join(map(signer_name, wanted.keys))}"


def identified(wanted: Quorum) -> str:
    """Return `names` with key ids, since the sender of a draft may call any key alice."""
    return f"{wanted.threshold} of {', '.join(f'{signer_name(k)} ({k.keyid[:ID_CHARS]})' for k in wanted.keys)}"


def release_line(release: SignedRelease) -> str:
    """Return a release in one line."""
    variants = ", ".join(variant.name for variant in release.variants)
    at = release.released_at.strftime(TIME_FORMAT)
    slots = f", for the slots {', '.join(release.slots)}" if release.slots else ""
    change = ", WITH OTHER INPUTS OR OUTPUTS than other versions" if release.changes_signature else ""
    return (
        f"{release.model} {release.version}, floor {release.floor}, variants {variants}, released {at}{slots}{change}"
    )


def _root_changes(signed: Root, before: Document | None) -> Iterator[str]:
    old = cast("Root", before.signed) if before else None
    for name in signed.roles:
        now, then = identified(quorum(signed, name)), identified(quorum(old, name)) if old else ""
        if old is None or _keys(signed.roles[name]) != _keys(old.roles[name]):
            yield f"{name}: {now}{f' (before: {then})' if then else ''}"


def _changes(signed: Targets, before: Metadata[Root] | Metadata[Targets] | None, draft: Draft) -> Iterator[str]:
    old = cast("Targets", before.signed) if before else Targets()
    then = delegated_roles(old)
    for name, role in delegated_roles(signed).items():
        if name not in then or _keys(role) != _keys(then[name]) or role.paths != then[name].paths:
            was = f" (before: {identified(quorum(old, name))})" if name in then else ""
            yield f"{name}, for {', '.join(role.paths or ())}: {identified(quorum(signed, name))}{was}"
    for name in then.keys() - delegated_roles(signed).keys():
        yield f"removes the role {name}"
    for path, target in signed.targets.items():
        if old.targets.get(path) != target and (withdrawal := read_withdrawal(target)):
            yield f"withdraws {path}: {_WITHDRAWALS[withdrawal]}"
        elif old.targets.get(path) != target:
            head, *content = _target_lines(target, draft.documents.get(path), draft)
            yield f"{'replaces' if path in old.targets else 'adds'} {head}"
            yield from content
    for path in old.targets.keys() - signed.targets.keys():
        yield f"removes {path}"
    # A release can fall below a floor by any change of this document.
    for path in signed.targets:
        if is_release(path) and _is_below_floor(signed, path) and not _is_below_floor(old, path):
            yield f"BARS {path} by its floor: devices no longer install it; those that run it keep it"


def _is_below_floor(signed: Targets, path: str) -> bool:
    try:
        check_floor(path, lambda owner, model: floor_of(signed, owner, model))
    except Distrust:
        return True
    return False


def _target_lines(target: TargetFile, content: bytes | None, draft: Draft) -> Iterator[str]:
    """Yield a release in one line; settings, profiles and policies in full, since devices follow their content."""
    digest = f"sha256 {target.hashes['sha256']}"
    if content is None:
        yield f"{target.path}, {target.length} bytes, {digest}"
    elif is_release(target.path):
        yield from _release_lines(target.path, content, digest, draft)
    else:
        yield f"{target.path}, {target.length} bytes, {digest}{_unreadable(target.path, content)}:"
        yield from (f"  | {line}" for line in content.decode(errors="backslashreplace").split("\n") if line)
        yield from _permitted(target.path, content)


_WITHDRAWALS = {
    Withdrawal.OFFER: "devices no longer install it; those that run it keep it",
    Withdrawal.REMOVE: "EVERY DEVICE THAT RUNS IT STOPS IT AT ONCE, whatever the policies say",
}


def _release_lines(path: str, content: bytes, digest: str, draft: Draft) -> Iterator[str]:
    try:
        release = read_release_document(path, content)
    except ValueError as error:
        yield f"{path}: WHICH IS NO RELEASE ({error}), {digest}"
        return
    yield f"{path}: {_line(release)}, {digest}"
    if isinstance(release, SettingsRelease):
        yield from settings_lines(release, _before(release, draft))


def _line(release: ReleaseDocument) -> str:
    if isinstance(release, SettingsRelease):
        return settings_line(release)
    return software_line(release) if isinstance(release, SoftwareRelease) else release_line(release)


def _before(release: SettingsRelease, draft: Draft) -> SettingsRelease | None:
    """Return the newest older settings of the same name that the same document lists, if the draft holds them."""
    found = previous_settings(cast("Targets", draft.metadata.signed), release.name, release.version)
    content = draft.documents.get(found.path) if found else None
    try:
        return read_settings_release(content) if content is not None else None
    except ValueError:
        return None


def _permitted(path: str, content: bytes) -> Iterator[str]:
    """Yield the keys that a policy permits signed settings to set, beyond those always allowed."""
    try:
        policy = read_policy(content, path) if path.startswith(f"{POLICY}/") else None
    except ConfigurationError:
        return
    if policy and policy.settings:
        yield f"  PERMITS the fleet's settings to change {', '.join(policy.settings)}"


def _unreadable(path: str, content: bytes) -> str:
    try:
        check_content(path.partition("/")[0], content, path)
    except ConfigurationError as error:
        return f", WHICH NO DEVICE CAN READ ({error})"
    return ""


def _keys(role: Role) -> tuple[frozenset[str], int]:
    return frozenset(role.keyids), role.threshold
