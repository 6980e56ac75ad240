"""The signed policy, enforced here: how soon a device may change, whatever whoever assigns things says.

A policy stays in force until whoever signed it signs another under its name, or none: an assignment that does not list
it any more takes nothing back. Otherwise who steals the controller would begin with that. All policies of a device
hold; one that cannot be read holds everything, while what runs serves on. What is begun, and every roll-back, goes on.

The time that counts is the system's, never earlier than the floor; what a controller attests (it may be stolen) is not
heard. From when on a change waits, and for how long that is remembered: `sights`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gateway.agent.clock import synchronised, system_now
from gateway.agent.sights import INSTALL, LONG_AGO, WITHDRAW, Present, Sights
from gateway.agent.storage import Storage
from gateway.domain.activation import Activation, Installed
from gateway.domain.assignment import SETTINGS_SLOT, SOFTWARE_SLOT, Target
from gateway.domain.errors import ConfigurationError
from gateway.domain.policy import POLICY_LIMIT_BYTES, Policy, blocked, earliest, earliest_removal, read_policy
from gateway.domain.settings_release import SettingsRelease, read_settings_release
from gateway.domain.signed_release import RELEASE_LIMIT_BYTES, SignedRelease, read_release
from gateway.domain.software_release import SoftwareRelease, read_software
from gateway.store.active import Active
from gateway.store.errors import StoreError
from gateway.store.journal import Journal
from gateway.trust import clock

LAST = (
    "this device would be left without any model; assign another model first, or let a signed policy say "
    '"removal_of_last": true'
)
FOLDER = "policy/"
"""How paths of policies begin in the repository."""
DEFAULT = "the built-in policy"
"""Name of the bounds of removals on a device without a policy."""
HELD, SIGHTS = "held", "sights"
"""Names of the facts: what may not begin yet, by slot; when changes were first seen."""


_READERS: Mapping[str, Callable[[bytes], SignedRelease | SoftwareRelease | SettingsRelease]] = {
    SOFTWARE_SLOT: read_software,
    SETTINGS_SLOT: read_settings_release,
}
"""Readers of release documents by reserved slot."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A change may not begin before `until` (None: nobody can say); `why` in words."""

    change: str
    until: datetime | None
    why: str


def present(floor: datetime | None) -> Present:
    """Now."""
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

    The hours of each policy stand still in the blackouts of all: otherwise these would end for all devices at once.
    A removal has bounds also where there is no policy.
    """
    blackouts = tuple(blackout for policy in policies.values() for blackout in policy.blackouts)
    bounding = policies or ({DEFAULT: Policy()} if change == WITHDRAW else {})
    found = []
    for path, policy in bounding.items():
        turn = _turn(replace(policy, blackouts=blackouts), who, change, release, times)
        found.append(_hold(policy, path, change, turn, now))
    return max((one for one in found if one), key=lambda one: one.until or now, default=None)


def _turn(
    policy: Policy, who: tuple[str, str], change: str, release: str, times: tuple[datetime, datetime]
) -> datetime:
    device, profile = who
    if change == WITHDRAW:
        return earliest_removal(policy, device, release, times[0], profile)
    return earliest(policy, device, release, *times, profile)


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
    """Bounds of one poll: `may_install` each change, ask for `removable` ones, then `end`; only then carry them out."""

    def __init__(self, storage: Storage, device: str, now: Present) -> None:
        self._storage, self._device, self._now = storage, device, now
        self._policies, self._problem = read_policies(storage)
        self._sights = Sights(storage.journal.fact(SIGHTS) or "{}", now)
        self._held: dict[str, Hold] = {}

    @property
    def asks_for_profile(self) -> bool:
        """Whether it matters what kind of device this is."""
        return any(policy.profiles for policy in self._policies.values())

    def may_install(self, activation: Activation, profile: str = "") -> bool:
        """Whether the release, verified before, may be begun now; if not, it is held."""
        return self._may(INSTALL, activation, profile)

    def removable(self, ordered: Iterable[Activation], profile: str = "") -> list[str]:
        """Return the slots among those `ordered` to be emptied that may be emptied now; the others are held.

        Unless every policy allows it, the device is not left without any model.
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
        """Keep what was seen and what is held. `assigned`, and what is held: by slot. Raises StoreError."""
        held = {slot: _document(one) for slot, one in self._held.items()}
        facts = {SIGHTS: self._sights.text(assigned), HELD: json.dumps(held)}
        journal = self._storage.journal
        changed = {name: value for name, value in facts.items() if journal.fact(name) != value}
        if changed:
            journal.keep_facts(changed)
        return self._held

    def _may(self, change: str, activation: Activation, profile: str) -> bool:
        slot, release = activation.slot, activation.release
        first = self._sights.see(change, slot, release)
        if self._problem:
            found: Hold | None = Hold(change, None, self._problem)
        else:
            times = first, self._released(activation, first)
            found = hold(self._policies, (self._device, profile), change, release, times, now=self._now.now)
        if found:
            self._held[slot] = found
        elif running := self._storage.active().slots.get(slot):
            self._sights.leave(slot, running.release)
        return found is None

    def _released(self, activation: Activation, first: datetime) -> datetime:
        """The owner's date; `first`, when it was seen, where that counts alone: of what ran here until lately, whatever
        policy there was then, and where the disk lost the document."""
        if first == LONG_AGO:
            return first
        try:
            content = self._storage.blobs.read(activation.release, RELEASE_LIMIT_BYTES)
            return _READERS.get(activation.slot, read_release)(content).released_at
        except (StoreError, ValueError):
            return first


def read_policies(storage: Storage) -> tuple[dict[str, Policy], str]:
    """Those in force by path, and why one of them cannot be read ("": all can)."""
    found: dict[str, Policy] = {}
    for file in storage.active().files:
        path = file.target.path
        if not path.startswith(FOLDER):
            continue
        try:
            found[path] = read_policy(storage.blobs.read(file.target.sha256, POLICY_LIMIT_BYTES), path)
        except (ConfigurationError, StoreError) as error:
            return found, f"nothing changes while a policy cannot be read: {error}; let its signer publish a mended one"
    return found, ""


def unlisted(active: Active, assigned: Iterable[str]) -> tuple[Installed, ...]:
    """Policies in force that an assignment does not list."""
    paths = frozenset(assigned)
    return tuple(file for file in active.files if file.target.path.startswith(FOLDER) and file.target.path not in paths)


def read_holds(journal: Journal) -> dict[str, dict[str, Any]]:
    """What may not begin yet, by slot: `change`, `until`, `why`."""
    found: dict[str, dict[str, Any]] = json.loads(journal.fact(HELD) or "{}")
    return found


def _document(one: Hold) -> dict[str, Any]:
    return {"change": one.change, "until": one.until.isoformat() if one.until else None, "why": one.why}
