"""Views of rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.controller.control.rollouts_preview import Preview
from fleet.controller.control.rollouts_record import RecordedRollout, state_name
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.schedule import SITE, may_offer, next_opening
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.spec_form import spec_digest, spec_document
from fleet.controller.rollouts.state import EARLIER, ENDED, NO_WAVE, Member, RolloutState, device_counts, open_offers
from fleet.times import moment

ZONES_LIMIT = 50
"""Time zones in which the next opening is searched."""


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """A rollout in a list.

    `state`: draft, approved, running, paused, standing, finished or aborted. `standing`: it stays the target of its
    query after its last wave. `revised_by`: who revised the specification last ("": it was not revised). `archived`:
    since when lists leave it out, null: they show it.
    """

    id: str
    name: str
    slot: str
    target: str
    state: str
    standing: bool
    created: str
    created_by: str
    revised_by: str
    archived: str | None
    facts: int


@dataclass(frozen=True, slots=True)
class WaveEntry:
    """A wave; 0 is the canary.

    `devices`: number of devices in it. `states`: number of devices by state. `approved`: it needs no approval, or has
    it. `may_install`: devices with an offer that they may still install, also silent and suspended ones.
    """

    wave: int
    opened: bool
    approved: bool
    devices: int
    may_install: int
    states: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class RolloutView(RolloutEntry):
    """A rollout in full.

    `round`: 0, or how often a standing rollout went through its waves before. `served`: devices of earlier rounds by
    state. `wave`: the last that was opened in this round, null before the first. `waiting`: devices that are in no wave
    yet. `may_install`: devices that may still install it, also while the rollout is paused: of all waves. `reason`,
    `evidence`: of the last pause, abort or supersession. `halted`: too many failed. `next_opening`: when a waiting
    device may be offered something (equal to `created` if it may be now). `ignored`: number of facts without effect, by
    reason. `spec_digest`: what an approval names.
    """

    round: int
    served: Mapping[str, int]
    wave: int | None
    waiting: int
    may_install: int
    waves: Sequence[WaveEntry]
    halted: bool
    reason: str
    evidence: Mapping[str, float | int | str]
    rollback_requested: bool
    next_opening: str | None
    ignored: Mapping[str, int]
    spec: Mapping[str, Any]
    spec_digest: str


@dataclass(frozen=True, slots=True)
class RolloutDevice:
    """A device in a rollout.

    `round`: the one in which it is offered the release. `wave` null: it waits. `attempt`: number of its offers.
    `failures`: number of those that it gave up. `present` false: it left. `accelerators`: the set of them by which
    canaries are chosen.
    """

    device: str
    state: str
    round: int
    wave: int | None
    attempt: int
    failures: int
    present: bool
    reason: str
    accelerators: str
    zone: str
    offered: str | None
    heard: str | None
    decided: str | None


@dataclass(frozen=True, slots=True)
class PreviewWave:
    """Number of devices that the wave would take."""

    wave: int
    devices: int


@dataclass(frozen=True, slots=True)
class PreviewView:
    """Preview of a specification on the fleet as it is now.

    `devices`: number of matching devices. `accelerators`: the same by set of accelerators. `held`: those that another
    rollout has in this slot. `unknown_zones`: sites whose windows would never open. `running`: matching devices by the
    version that they report in the slot ("": none). `running_others`: devices with rarer versions.
    """

    devices: int
    accelerators: Mapping[str, int]
    waves: Sequence[PreviewWave]
    held: int
    unknown_zones: Sequence[str]
    running: Mapping[str, int]
    running_others: int
    spec: Mapping[str, Any]
    spec_digest: str


def entry(stored: StoredRollout) -> RolloutEntry:
    """Return a rollout for a list."""
    return RolloutEntry(**_summary(stored))


def view(known: RecordedRollout, now: datetime) -> RolloutView:
    """Return a rollout in full."""
    spec, state = known.spec, known.state
    counts, opens = device_counts(state), opening(spec, state, now)
    offers, numbers = open_offers(state), range(spec.first_wave, spec.last_wave + 1)
    return RolloutView(
        **_summary(known.stored),
        round=state.round,
        served=dict(counts.get(EARLIER, {})),
        wave=None if state.wave == NO_WAVE else state.wave,
        waiting=sum(counts.get(NO_WAVE, {}).values()),
        may_install=sum(offers.values()),
        waves=[_wave(spec, state, wave, counts.get(wave, {}), offers.get(wave, 0)) for wave in numbers],
        halted=state.halted,
        reason=state.reason,
        evidence=state.evidence,
        rollback_requested=state.rollback_requested,
        next_opening=moment(known.stored.created if opens == now else opens),  # the same in each answer, for its ETag
        ignored=state.ignored,
        spec=spec_document(spec),
        spec_digest=spec_digest(spec),
    )


def device(member: Member) -> RolloutDevice:
    """Return a device of a rollout."""
    return RolloutDevice(
        member.device,
        member.state.value,
        member.round,
        None if member.wave == NO_WAVE else member.wave,
        member.attempt,
        member.failures,
        member.present,
        member.reason,
        member.stratum,
        member.zone,
        _moment(member.offered_at),
        _moment(member.heard_at),
        _moment(member.verdict_at),
    )


def preview(found: Preview, spec: Spec) -> PreviewView:
    """Return the preview of a specification."""
    waves = [PreviewWave(wave, devices) for wave, devices in found.waves.items()]
    return PreviewView(
        found.devices,
        found.strata,
        waves,
        found.held,
        found.unknown_zones,
        found.running,
        found.running_others,
        spec_document(spec),
        spec_digest(spec),
    )


def opening(spec: Spec, state: RolloutState, now: datetime) -> datetime | None:
    """Return when the first waiting device may be offered something; None if none waits or no window opens."""
    if state.status in ENDED:
        return None
    zones = sorted({member.zone for member in state.members.values() if member.waiting})
    if not any(window.zone == SITE for window in spec.windows):
        zones = zones[:1]
    if any(may_offer(spec, zone, now) for zone in zones):
        return now
    found = (next_opening(spec, zone, now) for zone in zones[:ZONES_LIMIT])
    return min((at for at in found if at is not None), default=None)


def _summary(stored: StoredRollout) -> dict[str, Any]:
    plain = {name: getattr(stored, name) for name in ("id", "name", "slot", "target", "created_by", "revised_by")}
    times = {"created": moment(stored.created), "archived": moment(stored.archived)}
    standing = bool(stored.spec.get("standing"))
    return {**plain, **times, "state": state_name(stored.state), "standing": standing, "facts": stored.sequence}


def _wave(spec: Spec, state: RolloutState, wave: int, states: Mapping[str, int], offers: int) -> WaveEntry:
    approved = wave in state.approved_waves or not spec.needs_approval(wave)
    return WaveEntry(wave, wave <= state.wave, approved, sum(states.values()), offers, dict(states))


def _moment(at: datetime) -> str | None:
    """Return a time as text. A member's times that are not set are in the year 1, and become null."""
    return moment(at) if at.year > 1 else None
