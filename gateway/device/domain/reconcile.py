"""Changes that make a device run what it was assigned: a decision on values, made again after every step."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from gateway.common.domain.assignment import Target
from gateway.common.domain.update import REVOCABLE, Step


@dataclass(frozen=True, slots=True)
class Install:
    """Change: begin an update of a slot to `target`."""

    slot: str
    target: Target


@dataclass(frozen=True, slots=True)
class Supersede:
    """Change: abandon the update in progress of a slot, because another release, or none, is assigned now."""

    slot: str


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Change: stop serving a slot, whose removal is ordered."""

    slot: str


Change = Install | Supersede | Withdraw


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Update of a slot in progress: the release (digest) and its current step."""

    release: str
    step: Step


def changes(
    desired: Mapping[str, Target],
    committed: Mapping[str, str],
    under_way: Mapping[str, UnderWay],
    rejected: AbstractSet[tuple[str, str]] = frozenset(),
    removed: AbstractSet[str] = frozenset(),
) -> tuple[Change, ...]:
    """Return the changes to begin, by slot in alphabetical order; none for a slot whose update must continue first.

    `committed`: release digest by slot. `rejected`: (slot, release digest) that failed here under this assignment.
    `removed`: slots whose removal is ordered. A slot that is only missing from `desired` keeps its release.
    """
    slots = sorted({*desired, *committed, *under_way})
    found = (_change(slot, desired, committed, under_way, rejected) for slot in slots)
    return tuple(one for one in found if one and (one.slot in removed or not isinstance(one, Withdraw)))


def _change(
    slot: str,
    desired: Mapping[str, Target],
    committed: Mapping[str, str],
    under_way: Mapping[str, UnderWay],
    rejected: AbstractSet[tuple[str, str]],
) -> Change | None:
    target, running = desired.get(slot), under_way.get(slot)
    if running is not None:
        wanted = target is not None and target.sha256 == running.release
        return None if wanted or running.step not in REVOCABLE else Supersede(slot)
    if target is None:
        return Withdraw(slot)
    if committed.get(slot) == target.sha256 or (slot, target.sha256) in rejected:
        return None
    return Install(slot, target)
