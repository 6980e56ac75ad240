"""Roles: which paths they may sign, and the quorums that their documents need. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import Signer
from tuf.api.metadata import DelegatedRole, Delegations, Key, Metadata, Root, Targets

from gateway.common.domain.assignment import RESERVED_SLOTS
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.manifest_toml import DIGEST_PATTERN, NAME_PATTERN

ROOT, TARGETS, SNAPSHOT, TIMESTAMP = "root", "targets", "snapshot", "timestamp"
PROFILES, POLICY, DIRECTOR = "profiles", "policy", "director"
ONLINE = (SNAPSHOT, TIMESTAMP)
"""Roles signed during publishing, with keys that the publisher holds."""
OWNER_PREFIX = "models-"


@dataclass(frozen=True, slots=True)
class Quorum:
    """`threshold` of these keys must sign. `purpose` is for people. An optional quorum only smooths a change."""

    keys: tuple[Key, ...]
    threshold: int
    purpose: str = ""
    optional: bool = False

    def signed_by(self, metadata: Metadata[Root] | Metadata[Targets]) -> tuple[Key, ...]:
        """Return its keys that have validly signed."""
        content = metadata.signed_bytes
        return tuple(key for key in self.keys if _verifies(key, metadata, content))

    def missing(self, metadata: Metadata[Root] | Metadata[Targets]) -> int:
        """Return how many signatures are missing."""
        return max(0, self.threshold - len(self.signed_by(metadata)))


def _verifies(key: Key, metadata: Metadata[Root] | Metadata[Targets], content: bytes) -> bool:
    signature = metadata.signatures.get(key.keyid)
    if signature is None:
        return False
    try:
        key.verify_signature(signature, content)
    except UnverifiedSignatureError:
        return False
    return True


def add_signature(metadata: Metadata[Any], signer: Signer) -> None:
    """Add a signature. Errors of the signer pass unchanged (`Metadata.sign` would wrap them)."""
    signature = signer.sign(metadata.signed_bytes)
    metadata.signatures[signature.keyid] = signature


def owner_role(owner: str) -> str:
    """Return the role that signs an owner's releases; "@software" and "@settings" are owners, too.

    Raise ConfigurationError for what cannot be a name.
    """
    if owner in RESERVED_SLOTS:
        return RESERVED_SLOTS[owner]
    if not NAME_PATTERN.fullmatch(owner):
        raise ConfigurationError(f"{owner!r:.150} is not an owner's name; use letters, digits, '.', '_' and '-'")
    return f"{OWNER_PREFIX}{owner}"


def role_paths(role: str) -> list[str]:
    """Return the targets that a delegated role may sign. Raise ConfigurationError for a role that cannot exist."""
    fixed = {PROFILES: "profiles/*", POLICY: "policy/*", DIRECTOR: "assignments/*"}
    fixed |= {kind: f"{kind}/*/*/*" for kind in RESERVED_SLOTS.values()}
    if role in fixed:
        return [fixed[role]]
    owner = role.removeprefix(OWNER_PREFIX)
    if role == owner or not NAME_PATTERN.fullmatch(owner):
        raise ConfigurationError(
            f"{role!r:.150} is not a role; use {', '.join((ROOT, TARGETS, *ONLINE, *fixed))} or {OWNER_PREFIX}OWNER"
        )
    return [f"models/{owner}/*/*/*"]


def signer_name(key: Key) -> str:
    """Return the name of the key's holder, or the first digits of the key's id if it has no name."""
    return printable(str(key.unrecognized_fields.get(NAME_FIELD) or key.keyid[:8]))


def printable(text: str) -> str:
    """Return text of others on one line, without characters that would control a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def check_targets(targets: Targets) -> None:
    """Raise ValueError if a target cannot be a file of the repository, by its path or its digest."""
    for path, target in targets.targets.items():
        if not all(NAME_PATTERN.fullmatch(part) for part in path.split("/")):
            raise ValueError(f"{path!r:.200} is not a target's path")
        if not DIGEST_PATTERN.fullmatch(target.hashes.get("sha256", "")):
            raise ValueError(f"{path!r:.200} has no sha256 digest")


NAME_FIELD = "x-edge-name"
"""Name of a key for people, signed with it in root and targets; not part of its id."""


def check_threshold(role: str, keys: Sequence[Key], threshold: int) -> None:
    """Raise ConfigurationError if the keys can never meet the threshold, or one is named twice."""
    if len({key.keyid for key in keys}) < len(keys):
        raise ConfigurationError(f"a key of {role} is named twice; name different keys")
    if not 1 <= threshold <= len(keys):
        raise ConfigurationError(
            f"{role} needs {threshold} of {len(keys)} keys; name 1 to {len(keys)} as its threshold"
        )


def default_threshold(keys: Sequence[Key]) -> int:
    """Return the default threshold of these keys: two, so that one stolen key signs nothing."""
    return min(2, len(keys))


def with_root_role(root: Root, role: str, keys: Sequence[Key], threshold: int) -> Root:
    """Return a copy in which exactly these keys sign for `role`."""
    check_threshold(role, keys, threshold)
    changed = copy.deepcopy(root)
    for keyid in list(changed.roles[role].keyids):
        changed.revoke_key(keyid, role)
    for key in keys:
        changed.add_key(key, role)
    changed.roles[role].threshold = threshold
    return changed


def with_delegation(targets: Targets, role: str, keys: Sequence[Key], threshold: int) -> Targets:
    """Return a copy in which exactly these keys sign for the delegated `role`, which is added if it is new."""
    check_threshold(role, keys, threshold)
    changed = copy.deepcopy(targets)
    delegations = changed.delegations or Delegations({}, {})
    roles = dict(delegations.roles or {})
    roles[role] = DelegatedRole(role, [key.keyid for key in keys], threshold, terminating=True, paths=role_paths(role))
    known = delegations.keys | {key.keyid: key for key in keys}
    used = {keyid for delegated in roles.values() for keyid in delegated.keyids}
    changed.delegations = Delegations({keyid: key for keyid, key in known.items() if keyid in used}, roles)
    return changed


def delegated_roles(targets: Targets | None) -> Mapping[str, DelegatedRole]:
    """Return the roles that `targets` delegates to, by name."""
    return (targets.delegations.roles or {}) if targets and targets.delegations else {}


def quorum(delegator: Root | Targets, role: str, purpose: str = "", *, optional: bool = False) -> Quorum:
    """Return the quorum of `role`. Raise ConfigurationError if there is no such role."""
    try:
        found = delegator.get_delegated_role(role)
    except ValueError:
        known = "edge-fleet status lists those there are, edge-fleet delegate adds an owner's"
        raise ConfigurationError(f"there is no role {role!r:.150}; {known}") from None
    keys: Iterable[Key] = (delegator.get_key(keyid) for keyid in found.keyids)
    return Quorum(tuple(keys), found.threshold, purpose, optional)
