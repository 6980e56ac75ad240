"""Enforcement of signed policies on the device: bounds on how soon it may change, independent of the controller.

A policy stays in force until its signer replaces it under its name or removes it. An assignment that no longer lists a
policy does not remove it: an attacker who controls the controller would begin with that. All policies of a device apply
together. A policy that cannot be read holds every change, while the running models continue to serve. Updates that have
begun, and all roll-backs, continue.

Policies are evaluated at the system's time, never earlier than the time floor. The time that a controller attests is
ignored, because the controller may be compromised. `sights` records when each change was first seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gateway.common.domain.activation import Activation, Installed
from gateway.common.domain.assignment import Target
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.policy import (
    FOLDER,
    POLICY_LIMIT_BYTES,
    Policy,
    blocked,
    earliest,
    earliest_removal,
    read_policy,
)
from gateway.common.domain.release_documents import read_release_document
from gateway.common.domain.signed_release import RELEASE_LIMIT_BYTES
from gateway.common.store.active import Active
from gateway.common.store.errors import StoreError
from gateway.common.trust import clock
from gateway.device.agent.clock import synchronised, system_now
from gateway.device.agent.state.first_seen import INSTALL, LONG_AGO, WITHDRAW, FirstSeen, Present
from gateway.device.agent.state.storage import Storage
from gateway.device.store.journal import Journal

LAST = (
    "this device would be left without any model; assign another model first, or let a signed policy say "
    '"removal_of_last": true'
)
DEFAULT = "the built-in policy"
"""Name of the bounds of removals on a device without a policy."""
HELD, SIGHTS = "held", "sights"
"""Names of the facts: held changes, by slot; times at which changes were first seen."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Change that may not begin before `until` (None: not known); `why` is the reason in words."""

    change: str
    until: datetime | None
    why: str


def present(floor: datetime | None) -> Present:
    """Return the current time and whether it is trusted."""
    system = system_now()
    trusted = clock.clock_trusted(system, floor, synchronised=synchronised())
    return Present(clock.reference_time(system, floor), trusted)


def hold(
    policies: Mapping[str, Policy],
    who: tuple[str, str],
    change: str,
    release: str,
    times: tuple[datetime, datetime],
    *,
    now: datetime,
) -> Hold | None:
    """Return why a change may not begin now, or None. `who`: device and profile; `times`: first seen, released.

    The hours of each policy do not count during the blackouts of all policies: otherwise the whole fleet would change
    at the end of a blackout. Removals have bounds even without a policy.
    """
    blackouts = tuple(blackout for policy in policies.values() for blackout in policy.blackouts)
    bounding = policies or ({DEFAULT: Policy()} if change == WITHDRAW else {})
    found = []
    for path, policy in bounding.items():
        combined, (device, profile) = replace(policy, blackouts=blackouts), who
        if change == WITHDRAW:
            turn = earliest_removal(combined, device, release, times[0], profile)
        else:
            turn = earliest(combined, device, release, *times, profile)
        found.append(_hold(policy, path, change, turn, now))
    return max((one for one in found if one), key=lambda one: one.until or now, default=None)


def _hold(policy: Policy, path: str, change: str, turn: datetime, now: datetime) -> Hold | None:
    blackout = blocked(policy, now)
    if blackout and blackout.end >= turn:
        reason = f" ({blackout.reason})" if blackout.reason else ""
        return Hold(change, blackout.end, f"{path} lets nothing change until {blackout.end:%FT%TZ}{reason}")
    if turn <= now:
        return None
    if change == WITHDRAW:
        return Hold(change, turn, f"{path} lets this device carry the removal out from {turn:%FT%TZ} on")
    return Hold(change, turn, f"{path} spreads changes over the fleet; the turn of this device comes at {turn:%FT%TZ}")


class Pacing:
    """Bounds of one poll.

    Call `may_install` for each change and `removable` for removals, then `end`; only then carry out what is allowed.
    """

    def __init__(self, storage: Storage, device: str, now: Present) -> None:
        self._storage, self._device, self._now = storage, device, now
        self._policies, self._problem = read_policies(storage)
        self._first_seen = FirstSeen(storage.journal.fact(SIGHTS) or "{}", now)
        self._held: dict[str, Hold] = {}

    @property
    def asks_for_profile(self) -> bool:
        """True if a policy depends on the device profile."""
        return any(policy.profiles for policy in self._policies.values())

    def may_install(self, activation: Activation, profile: str = "") -> bool:
        """Return True if the release, verified before, may be begun now; else it is held."""
        return self._may(INSTALL, activation, profile)

    def removable(self, ordered: Iterable[Activation], profile: str = "") -> list[str]:
        """Return the slots of `ordered` that may be emptied now; the others are held.

        The device is not left without any model unless every policy allows it.
        """
        wanted = tuple(ordered)
        free = [one.slot for one in wanted if self._may(WITHDRAW, one, profile)]
        policies = self._policies.values() or (Policy(),)
        if set(free) < self._storage.active().slots.keys() or all(one.removal_of_last for one in policies):
            return free
        for slot in free:
            self._held[slot] = Hold(WITHDRAW, None, LAST)
        return []

    def end(self, assigned: Mapping[str, Target]) -> Mapping[str, Hold]:
        """Keep first-seen times and held changes. Return the held changes by slot. Raise StoreError.

        `assigned`: targets by slot.
        """
        held = {
            slot: {"change": one.change, "until": one.until and one.until.isoformat(), "why": one.why}
            for slot, one in self._held.items()
        }
        facts = {SIGHTS: self._first_seen.text(assigned), HELD: json.dumps(held)}
        journal = self._storage.journal
        changed = {name: value for name, value in facts.items() if journal.fact(name) != value}
        if changed:
            journal.keep_facts(changed)
        return self._held

    def _may(self, change: str, activation: Activation, profile: str) -> bool:
        slot, release = activation.slot, activation.release
        first = self._first_seen.see(change, slot, release)
        if self._problem:
            found: Hold | None = Hold(change, None, self._problem)
        else:
            times = first, self._released(activation, first)
            found = hold(self._policies, (self._device, profile), change, release, times, now=self._now.now)
        if found:
            self._held[slot] = found
        elif running := self._storage.active().slots.get(slot):
            self._first_seen.leave(slot, running.release)
        return found is None

    def _released(self, activation: Activation, first: datetime) -> datetime:
        """Return the owner's release date.

        Return `first` instead if only that time counts: the release ran here until recently, under any policy, or its
        document is lost.
        """
        if first == LONG_AGO:
            return first
        try:
            content = self._storage.blobs.read(activation.release, RELEASE_LIMIT_BYTES)
            return read_release_document(activation.target, content).released_at
        except (StoreError, ValueError):
            return first


def read_policies(storage: Storage) -> tuple[dict[str, Policy], str]:
    """Return the policies in force by path, and why one of them cannot be read ("": all can)."""
    found: dict[str, Policy] = {}
    for file in storage.active().files:
        path = file.target.path
        if not path.startswith(FOLDER):
            continue
        try:
            found[path] = read_policy(storage.blobs.read(file.target.sha256, POLICY_LIMIT_BYTES), path)
        except (ConfigurationError, StoreError) as error:
            return (
                found,
                f"nothing changes while a policy cannot be read: {error}; its signer must publish a corrected one",
            )
    return found, ""


def unlisted(active: Active, assigned: Iterable[str]) -> tuple[Installed, ...]:
    """Return the policies in force that an assignment does not list."""
    paths = frozenset(assigned)
    return tuple(file for file in active.files if file.target.path.startswith(FOLDER) and file.target.path not in paths)


def read_holds(journal: Journal) -> dict[str, dict[str, Any]]:
    """Return the held changes by slot: `change`, `until`, `why`."""
    found: dict[str, dict[str, Any]] = json.loads(journal.fact(HELD) or "{}")
    return found
