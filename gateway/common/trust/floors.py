"""Floors of versions by key. A rotation of keys undoes a leap to a huge version by a stolen key (TUF 5.3.11).

A floor is kept for each key: the greatest version of a role that this key signed. The versions that a role's present
keys may have signed are bounded by the threshold-th greatest of their floors. Older documents of those keys are
refused, and documents that only removed keys signed no longer count. An attacker with fewer keys than the threshold of
the remaining ones has thus raised no floor that lasts, and the repository continues as before.

Floors of targets and of delegated roles are kept under the keys of the *snapshot* role, which states the current
versions. As in TUF, rotating the snapshot keys recovers from a leap of their versions too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.common.trust.distrust import Distrust, Reason
from gateway.common.trust.reading import check_version

if TYPE_CHECKING:
    from tuf.api.metadata import Root, Targets

ASSIGNMENT = "assignment"
"""Name of the floors of assignments, which are kept under the director's keys."""


@dataclass(frozen=True, slots=True)
class RoleKeys:
    """Keys that may sign for a role, and the threshold."""

    keyids: frozenset[str]
    threshold: int


def keys_of(delegator: Root | Targets, role: str) -> RoleKeys:
    """Return the keys of `role`. Raise Distrust if no key is named."""
    try:
        found = delegator.get_delegated_role(role)
    except ValueError:
        raise Distrust(Reason.FORGED, f"the role {role!r:.150}", "no key is named to sign for it") from None
    return RoleKeys(frozenset(found.keyids), found.threshold)


def role_floor(role: str, keys: RoleKeys, floors: Mapping[str, int]) -> int:
    """Return the greatest version that these keys may have signed together; 0 if there is none."""
    # To sign a version, `threshold` keys had to agree, so each of these has a floor of at least that version. Fewer
    # stolen keys raise only the greatest floors, which do not count here.
    seen = sorted((floors.get(floor_name(role, keyid), 0) for keyid in keys.keyids), reverse=True)
    return seen[keys.threshold - 1] if len(seen) >= keys.threshold else 0


def check_role_floor(role: str, version: int, keys: RoleKeys, floors: Mapping[str, int]) -> None:
    """Raise Distrust if `version` is below the floor. Call this before any of the document is kept."""
    check_version(version, role)
    floor = role_floor(role, keys, floors)
    if version < floor:
        raise Distrust(Reason.REPLAYED, role, f"its version {version} is below {floor}, which was accepted before")


def raised_floors(role: str, version: int, signers: Collection[str], floors: Mapping[str, int]) -> dict[str, int]:
    """Return the floors that rise if `version`, signed by `signers`, is accepted. Keep them in one transaction."""
    names = (floor_name(role, keyid) for keyid in sorted(signers))
    return {name: version for name in names if floors.get(name, 0) < version}


def floor_name(role: str, keyid: str) -> str:
    """Return the name of one key's floor in a journal."""
    return f"role:{role}:{keyid}"
