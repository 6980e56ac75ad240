"""Versions never fall, yet a stolen key's leap to a huge version is undone by rotating that key (TUF 5.3.11).

A floor is kept for each key: the greatest version seen of a role that this key signed. What a role's present keys could
still vouch for is then bounded by the threshold-th greatest of their floors: every older document that those keys could
be made to show again is refused, and what only removed keys signed no longer counts. So an attacker with
fewer than a threshold of the keys that remain has raised nothing that lasts, and the repository goes on as it was.

The floor of targets and of delegated roles is kept under the *snapshot* role's keys, whose word it is that these
versions are the present ones: as in TUF, rotating the snapshot's keys recovers from a leap of theirs too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.trust.distrust import Distrust, Reason
from gateway.trust.reading import check_version

if TYPE_CHECKING:
    from tuf.api.metadata import Root, Targets

ASSIGNMENT = "assignment"
"""The name under which the versions of assignments are kept, under the director's keys."""


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """Who may sign for a role, and how many of them must."""

    keyids: frozenset[str]
    threshold: int


def keys_of(delegator: Root | Targets, role: str) -> RoleKeys:
    """The keys of `role`. Raises Distrust where nobody is named."""
    try:
        found = delegator.get_delegated_role(role)
    except ValueError:
        raise Distrust(Reason.FORGED, f"the role {role!r:.150}", "nobody is named to sign for it") from None
    return RoleKeys(frozenset(found.keyids), found.threshold)


def role_floor(role: str, keys: RoleKeys, floors: Mapping[str, int]) -> int:
    """The greatest version that these keys may already have shown; 0 where they have shown none."""
    seen = sorted((floors.get(floor_name(role, keyid), 0) for keyid in keys.keyids), reverse=True)
    return seen[keys.threshold - 1] if len(seen) >= keys.threshold else 0


def check_role_floor(role: str, version: int, keys: RoleKeys, floors: Mapping[str, int]) -> None:
    """Raises Distrust where `version` is below the floor. Ask before anything of the document is kept."""
    check_version(version, role)
    floor = role_floor(role, keys, floors)
    if version < floor:
        raise Distrust(Reason.REPLAYED, role, f"its version {version} is below {floor}, which was accepted before")


def raised_floors(role: str, version: int, signers: Collection[str], floors: Mapping[str, int]) -> dict[str, int]:
    """The floors that rise when `version`, signed by the keys `signers`, is accepted; to be kept in one transaction."""
    names = (floor_name(role, keyid) for keyid in sorted(signers))
    return {name: version for name in names if floors.get(name, 0) < version}


def floor_name(role: str, keyid: str) -> str:
    """The name of the floor of one key in a journal."""
    return f"role:{role}:{keyid}"
