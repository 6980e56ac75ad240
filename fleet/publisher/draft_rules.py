"""Rules that an uploaded draft must keep to be equal to one made in the publisher's folder. Pure.

The signed part is compared with what is published: a role may only do what `fleet.publisher.signing` would have drafted
for it.
Everything else of the file (quorums, previous version) is computed here and not taken from the sender.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, cast

from tuf.api.metadata import DelegatedRole, Key, Metadata, Role, Root, Signed, TargetFile, Targets

from fleet.publisher.device_settings import check_tables
from fleet.publisher.drafts import Draft, merged
from fleet.publisher.files import SUFFIXES, check_content
from fleet.publisher.releases import choose_floor, model_floor
from fleet.publisher.roles import (
    DIRECTOR,
    NAME_FIELD,
    ROOT,
    TARGETS,
    check_threshold,
    delegated_roles,
    role_paths,
)
from fleet.publisher.signing import Drafting, expiry_d
from gateway.common.domain.assignment import Target
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import DIGEST_PATTERN
from gateway.common.domain.release_paths import is_release
from gateway.common.domain.settings_release import SettingsRelease
from gateway.common.trust.distrust import Distrust
from gateway.common.trust.paths import release_path
from gateway.common.trust.targets import WITHDRAWN, Withdrawal, check_document, read_withdrawal

CLOCK_TOLERANCE_S = 300.0
"""Allowed lead of a client's clock: its draft may expire that much later than one made here."""

SCHEMES = frozenset({"ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384"})
"""Key types that `edge-fleet keys new` creates or registers."""


class OutdatedError(ConfigurationError):
    """Draft that does not follow the published version."""


class SignatureRefusedError(ConfigurationError):
    """Signature of a key that may not sign, or not over this document."""


class PrivateKeyError(ConfigurationError):
    """Private key in what was sent."""


def check_no_private_key(content: bytes) -> None:
    """Raise PrivateKeyError if the bytes contain a private key in PEM."""
    if b"PRIVATE KEY-----" in content:
        raise PrivateKeyError(
            "contains a private key, which this controller never takes; nothing was kept. Sign where the key is, "
            "send only the signature, and replace the key if others could read what was sent"
        )


def accepted_draft(drafting: Drafting, uploaded: Draft) -> Draft:
    """Return an uploaded draft as it may be stored.

    Raise OutdatedError, SignatureRefusedError, PrivateKeyError; ConfigurationError for any other breach of the rules.
    """
    role, signed = uploaded.role, uploaded.metadata.signed
    if role == DIRECTOR:
        raise ConfigurationError("assignments are signed by the controller itself; the director has no drafts")
    previous = drafting.published.document(role)
    if previous is None and role == ROOT:
        raise ConfigurationError("the first root is drafted in the publisher's folder: edge-fleet repo init")
    quorums = drafting.quorums(role, signed)
    expected = previous.signed.version + 1 if previous else 1
    if type(signed.version) is not int or signed.version != expected:
        problem = f"is version {signed.version!r:.40} of {role}, {expected} comes next"
        raise OutdatedError(f"{problem}; make the change again from what is published now")
    _check_form(drafting, role, uploaded.metadata)
    documents: Mapping[str, bytes] = {}
    if isinstance(signed, Root):
        _check_root(signed)
    elif role == TARGETS:
        _check_delegations(signed, cast("Metadata[Targets] | None", previous))
    else:
        documents = dict(_checked_targets(signed, cast("Metadata[Targets] | None", previous), uploaded))
    unsigned = cast("Any", Metadata(signed))
    return with_signatures(Draft(role, unsigned, quorums, previous, documents), uploaded)


def with_signatures(draft: Draft, returned: Draft) -> Draft:
    """Return `draft` with all signatures of a copy. Raise SignatureRefusedError if one of them is not valid here."""
    joined = merged(draft, returned)
    for keyid in returned.metadata.signatures:
        if keyid not in draft.keys:
            raise SignatureRefusedError(f"the key {keyid!r:.80} may not sign {draft.role}; see its quorums")
        if keyid not in joined.metadata.signatures:
            problem = f"the signature of the key {keyid:.16} is not over the document of {draft.role} that waits here"
            raise SignatureRefusedError(f"{problem}; download the draft again and sign that")
    return joined


def new_targets(draft: Draft) -> Iterator[TargetFile]:
    """Yield the targets of a draft that are new or differ from the published ones."""
    signed, previous = draft.metadata.signed, draft.previous
    if isinstance(signed, Targets):
        before = previous.signed.targets if previous and isinstance(previous.signed, Targets) else {}
        yield from (target for path, target in signed.targets.items() if before.get(path) != target)


def _check_form(drafting: Drafting, role: str, metadata: Metadata[Any]) -> None:
    """Check what is common to all documents: no unknown fields, the specification's version, the expiry."""
    signed: Signed = metadata.signed
    if metadata.unrecognized_fields or signed.unrecognized_fields:
        unknown = ", ".join({**metadata.unrecognized_fields, **signed.unrecognized_fields})
        raise ConfigurationError(f"has fields that devices do not know: {unknown!r:.200}")
    if signed.spec_version != Targets().spec_version:
        raise ConfigurationError(f"is of TUF {signed.spec_version!r:.20}, {Targets().spec_version} is written here")
    latest = drafting.now + timedelta(days=expiry_d(role, drafting.settings), seconds=CLOCK_TOLERANCE_S)
    if not drafting.now < signed.expires <= latest:
        problem = f"expires at {signed.expires:%Y-%m-%dT%H:%M:%SZ}; documents of {role} made now expire by"
        raise ConfigurationError(f"{problem} {latest:%Y-%m-%dT%H:%M:%SZ} (fleet.toml; is your clock right?)")


def _check_root(root: Root) -> None:
    if root.consistent_snapshot is not True:
        raise ConfigurationError("root must have consistent_snapshot true")
    for name, role in root.roles.items():
        _check_keys(name, role, root.keys)
    _check_used(root.keys, root.roles)


def _check_delegations(signed: Targets, previous: Metadata[Targets] | None) -> None:
    if signed.targets or signed.delegations is None or signed.delegations.roles is None:
        raise ConfigurationError("targets names roles and signs nothing itself; draft it with edge-fleet delegate")
    if signed.delegations.unrecognized_fields:
        raise ConfigurationError("the delegations have fields that devices do not know")
    gone = delegated_roles(previous.signed if previous else None).keys() - signed.delegations.roles.keys()
    if gone:
        raise ConfigurationError(f"the role {min(gone)} is missing; a role that was named once stays")
    for name, role in signed.delegations.roles.items():
        _check_keys(name, role, signed.delegations.keys)
        if (role.name, role.paths, role.terminating) != (name, role_paths(name), True):
            raise ConfigurationError(f"the role {name!r:.140} may sign {', '.join(role_paths(name))} and nothing else")
    _check_used(signed.delegations.keys, signed.delegations.roles)


def _check_keys(name: str, role: Role, known: Mapping[str, Key]) -> None:
    if role.unrecognized_fields or type(role.threshold) is not int:
        raise ConfigurationError(f"the role {name!r:.140} is not written as edge-fleet writes roles")
    keys = [known[keyid] for keyid in role.keyids if keyid in known]
    if len(keys) < len(role.keyids):
        raise ConfigurationError(f"the role {name!r:.140} names a key that is not listed")
    check_threshold(name, keys, role.threshold)
    for key in keys:
        if "private" in key.keyval:
            raise PrivateKeyError("contains a private key, which this controller never takes; nothing was kept")
        written = key.keyval.keys() == {"public"} and isinstance(key.keyval["public"], str) and key.scheme in SCHEMES
        if not (written and DIGEST_PATTERN.fullmatch(key.keyid) and key.unrecognized_fields.keys() <= {NAME_FIELD}):
            raise ConfigurationError(f"the key {key.keyid!r:.80} is not written as edge-fleet writes keys")
    if len({str(key.keyval["public"]) for key in keys}) < len(keys):
        raise ConfigurationError(f"a key of {name!r:.140} is listed under two ids; name different keys")


def _check_used(keys: Mapping[str, Key], roles: Mapping[str, Role] | Mapping[str, DelegatedRole]) -> None:
    if unused := keys.keys() - {keyid for role in roles.values() for keyid in role.keyids}:
        raise ConfigurationError(f"the key {min(unused)!r:.80} is of no role")


def _checked_targets(
    signed: Targets, previous: Metadata[Targets] | None, uploaded: Draft
) -> Iterator[tuple[str, bytes]]:
    """Yield the documents of new targets by path, each checked as devices check it."""
    if signed.delegations is not None:
        raise ConfigurationError(f"{uploaded.role} may not name further roles")
    before = previous.signed.targets if previous else {}
    if gone := before.keys() - signed.targets.keys():
        raise ConfigurationError(f"{min(gone)} is missing; what was published stays, and may be withdrawn")
    delegated = DelegatedRole(uploaded.role, [], 1, terminating=True, paths=role_paths(uploaded.role))
    for path, target in signed.targets.items():
        old = before.get(path)
        if old == target:
            if path in uploaded.documents:  # shown to signers together with its replacement
                yield path, uploaded.documents[path]
            continue
        if not delegated.is_delegated_path(path):
            raise ConfigurationError(f"{uploaded.role} may not sign {path!r:.200}")
        fields, hashes = target.unrecognized_fields.keys(), target.hashes.keys()
        if type(target.length) is not int or hashes != {"sha256"} or not fields <= {"custom"}:
            raise ConfigurationError(f"{target.path!r:.200} is not written as edge-fleet writes targets")
        if old is not None and is_release(path):
            _check_withdrawal(old, target)
            continue
        content = uploaded.documents.get(path)
        if content is None:
            raise ConfigurationError(f"the content of {path!r:.200} is not in the draft; make the draft again")
        _check_content(uploaded.role, target, content, previous.signed if previous else None)
        yield path, content


def _check_withdrawal(old: TargetFile, new: TargetFile) -> None:
    """Check that only a withdrawal was added, or raised to `remove`: a published release never changes."""
    try:
        was, is_now = read_withdrawal(old), read_withdrawal(new)
    except Distrust as error:
        raise ConfigurationError(str(error)) from None
    raised = is_now is not None and (was is None or (was, is_now) == (Withdrawal.OFFER, Withdrawal.REMOVE))
    expected = {**(old.custom or {}), WITHDRAWN: is_now.value} if is_now else None
    if not raised or (new.length, new.hashes, new.custom) != (old.length, old.hashes, expected):
        raise ConfigurationError(f"{new.path} is published already and never changes; it can only be withdrawn")


def _check_content(role: str, target: TargetFile, content: bytes, published: Targets | None) -> None:
    if len(content) != target.length:  # its digest was checked when the draft was read
        raise ConfigurationError(f"{target.path!r:.200} has {len(content)} bytes, {target.length} would be signed")
    if is_release(target.path):
        named = Target(target.path, target.length, target.hashes["sha256"])
        try:
            release = check_document(content, named)
            if isinstance(release, SettingsRelease):
                check_tables(release.toml, target.path)
            custom = {"floor": release.floor}
            withdrawal = read_withdrawal(target)
            path = release_path(target.path)
        except Distrust as error:
            raise ConfigurationError(f"devices would refuse {target.path}: {error}") from None
        if target.custom != (custom | {WITHDRAWN: withdrawal.value} if withdrawal else custom):
            raise ConfigurationError(f"{target.path} signs another floor than its document states, or unknown fields")
        choose_floor(release.floor, model_floor(published, path.owner, path.model), release.version)
        return
    if target.unrecognized_fields or not target.path.endswith(SUFFIXES[role]):
        raise ConfigurationError(f"{target.path!r:.200} is no file of {role}: NAME{SUFFIXES[role]}")
    check_content(role, content, target.path)
