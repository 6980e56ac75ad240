"""Description of a draft in words for its signer. Pure.

It is derived from the signed content, not from what the draft's sender states. Unchanged parts are omitted only if the
previous version has the signer's own signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from tuf.api.metadata import Key, Metadata, Role, Root, TargetFile, Targets

from fleet.drafts import Document, Draft
from fleet.files import check_content
from fleet.roles import Quorum, delegated_roles, printable, quorum, signer_name
from fleet.software import software_line
from gateway.domain.errors import ConfigurationError
from gateway.domain.release_paths import is_release, is_software
from gateway.domain.signed_release import TIME_FORMAT, SignedRelease, read_release
from gateway.domain.software_release import read_software
from gateway.trust.distrust import Distrust
from gateway.trust.targets import Withdrawal, check_floor, floor_of, read_withdrawal

ID_CHARS = 16
"""Displayed characters of a key's id: 64 bits, for which a collision is too expensive to find."""


def describe(draft: Draft, key: Key) -> list[str]:
    """Return what the holder of this key would sign, line by line."""
    signed = draft.metadata.signed
    before = draft.previous if draft.previous and Quorum((key,), 1).signed_by(draft.previous) else None
    lines = [f"{draft.role}, version {signed.version}, valid until {signed.expires:{TIME_FORMAT}}"]
    if before:
        lines.append(f"  compared with version {before.signed.version}, which this key signed:")
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
    yield from _delegation_changes(signed, old)
    for path, target in signed.targets.items():
        if old.targets.get(path) != target and (withdrawal := read_withdrawal(target)):
            yield f"withdraws {path}: {_WITHDRAWALS[withdrawal]}"
        elif old.targets.get(path) != target:
            head, *content = _target_lines(target, draft.documents.get(path))
            yield f"{'replaces' if path in old.targets else 'adds'} {head}"
            yield from content
    for path in old.targets.keys() - signed.targets.keys():
        yield f"removes {path}"
    yield from _barred_lines(signed, old)


def _barred_lines(signed: Targets, old: Targets) -> Iterator[str]:
    """Yield the releases that fall below a floor by this document, wherever it is among its changes."""
    for path in signed.targets:
        if is_release(path) and _is_below_floor(signed, path) and not _is_below_floor(old, path):
            yield f"BARS {path} by its floor: devices no longer install it; those that run it keep it"


def _is_below_floor(signed: Targets, path: str) -> bool:
    try:
        check_floor(path, lambda owner, model: floor_of(signed, owner, model))
    except Distrust:
        return True
    return False


def _delegation_changes(signed: Targets, old: Targets) -> Iterator[str]:
    then = delegated_roles(old)
    for name, role in delegated_roles(signed).items():
        if name not in then or _keys(role) != _keys(then[name]) or role.paths != then[name].paths:
            was = f" (before: {identified(quorum(old, name))})" if name in then else ""
            yield f"{name}, for {', '.join(role.paths or ())}: {identified(quorum(signed, name))}{was}"
    for name in then.keys() - delegated_roles(signed).keys():
        yield f"removes the role {name}"


def _target_lines(target: TargetFile, content: bytes | None) -> Iterator[str]:
    """Yield a release in one line, or the full text of a profile or policy, since devices follow its content."""
    digest = f"sha256 {target.hashes['sha256']}"
    if content is None:
        yield f"{target.path}, {target.length} bytes, {digest}"
    elif is_software(target.path):
        yield f"{target.path}: {_software(content)}, {digest}"
    elif target.path.startswith("models/"):
        yield f"{target.path}: {_release(content)}, {digest}"
    else:
        yield f"{target.path}, {target.length} bytes, {digest}{_unreadable(target.path, content)}:"
        yield from (f"  | {line}" for line in content.decode(errors="backslashreplace").split("\n") if line)


_WITHDRAWALS = {
    Withdrawal.OFFER: "devices no longer install it; those that run it keep it",
    Withdrawal.REMOVE: "EVERY DEVICE THAT RUNS IT STOPS IT AT ONCE, whatever the policies say",
}


def _release(content: bytes) -> str:
    try:
        return release_line(read_release(content))
    except ValueError as error:
        return f"WHICH IS NO RELEASE ({error})"


def _software(content: bytes) -> str:
    try:
        return software_line(read_software(content))
    except ValueError as error:
        return f"WHICH IS NO RELEASE ({error})"


def _unreadable(path: str, content: bytes) -> str:
    try:
        check_content(path.partition("/")[0], content, path)
    except ConfigurationError as error:
        return f", WHICH NO DEVICE CAN READ ({error})"
    return ""


def _keys(role: Role) -> tuple[frozenset[str], int]:
    return frozenset(role.keyids), role.threshold
