"""Ownership of slots: how rollouts change the desired state of devices, and how it is restored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from fleet.controller.control.catalogue import usable
from fleet.controller.control.reports import Made
from fleet.controller.control.rollouts_record import RETURNING, RecordedRollout, States
from fleet.controller.database import assignments, desired, rollouts
from fleet.controller.database.desired import Desired, PreviousRelease
from fleet.controller.database.engine import Connection
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.database.rows import chunks
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.rollouts.decisions import Decision, Offer, Retry, RollBack
from fleet.controller.rollouts.facts import Reported
from fleet.controller.rollouts.facts_form import DECIDED, DECISIONS
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import IN_FLIGHT

OFFERS = frozenset(name for name, kind in DECISIONS.items() if kind in {Offer, Retry})
"""Names of offers in documents of decisions."""


def claimed(
    connection: Connection,
    states: States,
    spec: Spec,
    others: Sequence[StoredRollout],
    settings: DatabaseSettings,
    *,
    rollout: str = "",
) -> frozenset[str]:
    """Return the devices that `rollout` ("": a new one) cannot have.

    Either one of the live rollouts `others` offered them something for the slot, or they have the same release in
    another slot: a release serves in one slot only. Of a standing one in its later rounds, younger rollouts may have
    the devices that hold no offer.
    """
    whole, found = list[str](), set(desired.elsewhere(connection, spec.target.path, spec.slot))
    for other in others:
        yields = other.spec.get("standing") and other.state != RETURNING and (not rollout or other.id < rollout)
        known = states.read(connection, other.id, settings) if yields else None
        if known and known.state.round:
            states.keep(known)
            members = known.state.members.values()
            found.update(member.device for member in members if member.state in IN_FLIGHT and member.belongs)
        else:
            whole.append(other.id)
    return desired.held(connection, spec.slot, whole) | found


def carry_out(
    connection: Connection,
    known: RecordedRollout,
    decisions: Sequence[Decision],
    now: datetime,
    settings: DatabaseSettings,
) -> int:
    """Change the desired state as decided. Return how many roll-backs were not possible."""
    offers = [decision for decision in decisions if isinstance(decision, (Offer, Retry))]
    returns = [decision.device for decision in decisions if isinstance(decision, RollBack)]
    desired.lock(connection, [*(offer.device for offer in offers), *returns])
    for some in chunks(offers, settings.facts_limit_rows):
        rollout, slot, target = known.stored.id, known.spec.slot, known.spec.target
        devices = [offer.device for offer in some]
        present = desired.of_devices(connection, devices, slot)
        remembered = desired.before(
            connection, rollout, [one.device for one in present.values() if one.rollout == rollout]
        )
        new = (device for device in devices if device not in remembered)
        desired.remember(connection, (_before(rollout, device, present.get(device)) for device in new), settings)
        earlier, release = _earlier(connection, known, devices), (target.path, target.sha256, target.size_bytes)
        wanted = (
            Desired(offer.device, slot, *release, rollout, now, offer.attempt + earlier[offer.device]) for offer in some
        )
        desired.put(connection, wanted, settings)
    return sum(_return(connection, known, some, now, settings) for some in chunks(returns, settings.facts_limit_rows))


def answered(connection: Connection, known: RecordedRollout, made: Sequence[Made]) -> Sequence[Reported]:
    """Return devices' reports with the attempts of this rollout, without those that answer another offer."""
    present = desired.of_devices(connection, sorted({one.report.device for one in made}), known.spec.slot)
    base, found = assignments.base(connection), []
    for one in made:
        attempt = _answered(known, one, present.get(one.report.device), base)
        if attempt is not None:
            found.append(replace(one.report, attempt=attempt))
    return found


def _answered(known: RecordedRollout, made: Made, present: Desired | None, base: int) -> int | None:
    """Return the attempt that a report belongs to, or None if it answers another offer.

    It is the latest attempt if the report names that of the rollout's present offer. It is 0 if the report names no
    attempt, or if the device was told to go back and reports what it has run since, whichever rollout offered that.

    None also if a standing rollout served the device in an earlier round and the slot is another's now, or if the
    report was made before the device had an assignment with its present desired state. A report on another release
    counts only above `base`: versions up to it may be those of a controller that was lost since the backup.
    """
    report, member = made.report, known.state.members.get(made.report.device)
    if known.state.served(report.device) and (present is None or present.rollout != known.stored.id):
        return None
    if present and made.assignment and not 0 < present.signed <= made.assignment:
        return None
    if member is None:
        return report.attempt
    other = report.release != known.spec.target.sha256
    if member.returned and report.attempt and other:
        return 0
    if other and 0 < made.assignment <= base:
        return None
    if not report.attempt:
        return 0
    mine = present is not None and (present.rollout, present.attempt) == (known.stored.id, report.attempt)
    return member.attempt if mine else None


def _earlier(connection: Connection, known: RecordedRollout, devices: Sequence[str]) -> Counter[str]:
    """Count how often other rollouts offered these devices the same release, whatever they had since.

    Attempts in assignments count on from there: a device that rejected a release tries it again only for a greater
    number.
    """
    slot, target = known.spec.slot, known.spec.target.path
    decided = rollouts.of_devices(connection, devices, DECIDED, slot=slot, target=target, but=known.stored.id)
    return Counter(device for device, document in decided if document["decision"] in OFFERS)


def _before(rollout: str, device: str, present: Desired | None) -> PreviousRelease:
    if present is None:
        return PreviousRelease(rollout, device)
    state = (present.target, present.digest, present.size_bytes, present.rollout, present.attempt)
    return PreviousRelease(rollout, device, *state)


def _return(
    connection: Connection, known: RecordedRollout, devices: Sequence[str], now: datetime, settings: DatabaseSettings
) -> int:
    """Restore what the slots held before, where the slot is still this rollout's.

    Return for how many devices the former release must not be assigned any more.
    """
    rollout, slot = known.stored.id, known.spec.slot
    present = desired.of_devices(connection, devices, slot)
    mine = [device for device in devices if device in present and present[device].rollout == rollout]
    before = desired.before(connection, rollout, mine)
    empty = [entry.device for entry in before.values() if not entry.target]
    if empty:
        desired.remove(connection, empty, slot)
    targets = {entry.target for entry in before.values() if entry.target}
    barred = {target for target in targets if usable(connection, target)}
    wanted = (
        Desired(one.device, slot, one.target, one.digest, one.size_bytes, one.because, now, one.attempt)
        for one in before.values()
        if one.target and one.target not in barred
    )
    desired.put(connection, wanted, settings)
    return sum(entry.target in barred for entry in before.values())
