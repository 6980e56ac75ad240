"""Who a slot of a device belongs to: what rollouts do to the desired state, and how it comes back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from fleet.control.catalogue import usable
from fleet.control.rollouts_record import Known
from fleet.database import desired
from fleet.database.desired import Before, Desired
from fleet.database.engine import Connection
from fleet.database.rows import chunks
from fleet.database.settings import DatabaseSettings
from fleet.rollouts.decisions import Decision, Offer, Retry, RollBack
from fleet.rollouts.facts import Reported
from fleet.rollouts.spec import Spec


def claimed(connection: Connection, spec: Spec, others: Sequence[str]) -> frozenset[str]:
    """Devices that a rollout cannot have: one of the `others` that are live has offered them something for the slot, or
    they have the same release in another slot, and a release serves in one only."""
    elsewhere = desired.elsewhere(connection, spec.target.path, spec.slot)
    return desired.held(connection, spec.slot, others) | elsewhere


def carry_out(
    connection: Connection, known: Known, decisions: Sequence[Decision], now: datetime, settings: DatabaseSettings
) -> int:
    """Change what devices are to run as was decided; of how many a roll-back was not possible."""
    offers = [decision for decision in decisions if isinstance(decision, (Offer, Retry))]
    returns = [decision.device for decision in decisions if isinstance(decision, RollBack)]
    desired.lock(connection, [*(offer.device for offer in offers), *returns])
    for some in chunks(offers, settings.facts_limit_rows):
        _offer(connection, known, some, now, settings)
    return sum(_return(connection, known, some, now, settings) for some in chunks(returns, settings.facts_limit_rows))


def answered(connection: Connection, known: Known, reports: Sequence[Reported]) -> Sequence[Reported]:
    """Reports of a device by the attempts of this rollout; those of attempts before it answer another one, and are left
    out."""
    before = desired.before(connection, known.stored.id, sorted({report.device for report in reports}))
    found = []
    for report in reports:
        earlier = _earlier(before.get(report.device), known.spec.target.sha256) if report.attempt else 0
        if not 0 < report.attempt <= earlier:
            found.append(replace(report, attempt=report.attempt - earlier))
    return found


def _earlier(before: Before | None, digest: str) -> int:
    """How many attempts at the same release a device had before the rollout. They count on in its assignments: a device
    that rejected it tries it again for a greater number only."""
    return before.attempt if before and before.digest == digest else 0


def _offer(
    connection: Connection, known: Known, offers: Sequence[Offer | Retry], now: datetime, settings: DatabaseSettings
) -> None:
    rollout, slot, target = known.stored.id, known.spec.slot, known.spec.target
    present = desired.of_devices(connection, [offer.device for offer in offers], slot)
    mine = [device for device, wanted in present.items() if wanted.rollout == rollout]
    before = desired.before(connection, rollout, mine)
    new = [offer.device for offer in offers if offer.device not in before]
    fresh = {device: _before(rollout, device, present.get(device)) for device in new}
    desired.remember(connection, fresh.values(), settings)
    before |= fresh
    wanted = (
        Desired(
            offer.device,
            slot,
            target.path,
            target.sha256,
            target.size_bytes,
            rollout,
            now,
            offer.attempt + _earlier(before[offer.device], target.sha256),
        )
        for offer in offers
    )
    desired.put(connection, wanted, settings)


def _before(rollout: str, device: str, present: Desired | None) -> Before:
    if present is None:
        return Before(rollout, device)
    said = (present.target, present.digest, present.size_bytes, present.rollout, present.attempt)
    return Before(rollout, device, *said)


def _return(
    connection: Connection, known: Known, devices: Sequence[str], now: datetime, settings: DatabaseSettings
) -> int:
    """Back to what was there before, where the slot is still this rollout's; of how many that may not be assigned."""
    rollout, slot = known.stored.id, known.spec.slot
    present = desired.of_devices(connection, devices, slot)
    mine = [device for device in devices if device in present and present[device].rollout == rollout]
    before = desired.before(connection, rollout, mine)
    empty = [entry.device for entry in before.values() if not entry.target]
    if empty:
        desired.remove(connection, empty, slot)
    targets = {entry.target for entry in before.values() if entry.target}
    barred = {target for target in targets if usable(connection, target)}
    desired.put(connection, _wanted(before, slot, barred, now), settings)
    return sum(entry.target in barred for entry in before.values())


def _wanted(before: Mapping[str, Before], slot: str, barred: Iterable[str], now: datetime) -> Iterable[Desired]:
    for entry in before.values():
        if entry.target and entry.target not in barred:
            said = (entry.target, entry.digest, entry.size_bytes, entry.because, now, entry.attempt)
            yield Desired(entry.device, slot, *said)
