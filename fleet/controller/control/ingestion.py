"""Ingestion of telemetry.

Rows are stored once each, the device's record is updated from them, and their effects on rollouts are recorded. One
request is one transaction, and is acknowledged once that is on the disk.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta

from fleet.controller.control.authentication import admitted
from fleet.controller.control.concurrency_limit import ConcurrencyLimit
from fleet.controller.control.identity_use import IdentityUse, KnownMachine, judge
from fleet.controller.control.ingestion_lines import IntakeLimits, batches, plain_body
from fleet.controller.control.reports import (
    DEVICE,
    MOVED,
    SLOT,
    STATE,
    UPDATES,
    VITALS,
    Made,
    hardware,
    health,
    name,
    reported,
    slot_report,
    update_event,
)
from fleet.controller.control.rollouts_record import LIVE, RecordedRollout, States, new_fact
from fleet.controller.control.settings import IntakeSettings
from fleet.controller.control.slot_ownership import answered
from fleet.controller.database import devices, events, rollouts, tail, telemetry
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.events import Event
from fleet.controller.database.ingestion import Batch, Row
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.rollouts.facts import Fact, Reported
from fleet.controller.rollouts.fold import fold
from fleet.controller.rollouts.spec import Spec
from fleet.controller.rollouts.state import IN_FLIGHT, Member, Status
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.retry import TokenBuckets

CONCERNED = (*LIVE, Status.ABORTED.value)
"""Stored states of rollouts that a report may concern."""
TRACKED_DEVICES = 100_000
"""Devices whose rows are counted. Beyond that, the counts of the longest silent ones start again."""
RECORDS_PER_SILENCE = 4
"""Least number of times within `silence_s` that the progress of a device is recorded."""


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Acknowledgement that no row of this stream and boot up to number `seq` is missing."""

    stream: str
    boot_epoch: int
    seq: int


class Intake:
    """Ingestion of telemetry. One per process; any thread may call it."""

    def __init__(self, database: Database, settings: IntakeSettings, states: States, counts: Counter[str]) -> None:
        self._database, self._settings, self._states, self._counts = database, settings, states, counts
        self._limit = ConcurrencyLimit(settings.at_once, settings.wait_s)
        self._rows = TokenBuckets(settings.rows_per_s, settings.rows_burst, TRACKED_DEVICES)
        self._lock = threading.Lock()

    def take(self, serial: str, body: bytes, encoding: str, now: Callable[[], datetime]) -> list[Acknowledgement]:
        """Store telemetry of the device with this certificate. Return one acknowledgement per stream and boot.

        Raise RequestError: INVALID naming the line, TOO_LARGE, UNAUTHENTICATED, OVERLOADED.
        """
        with self._database.glance() as connection:
            device = admitted(connection, serial, now()).device
        with self._limit.entered(device) as free:
            if not free:
                self._counts["telemetry_overloaded"] += 1
                problem = "telemetry of many devices, or of this one, is being stored; send it again later"
                raise RequestError(Fault.OVERLOADED, problem)
            content = plain_body(body, encoding, self._settings.telemetry_unpacked_bytes)
            # A device that sends too fast would keep others from writing, and delay alerts, which read its rows first.
            with self._lock:
                wait_s = self._rows.take(device, time.monotonic_ns(), content.count(b"\n"))
            if wait_s:
                self._counts["rate_limited_rows"] += 1
                problem = (
                    f"{device:.140} sends more than {self._settings.rows_per_s:g} rows a second; send the rest later"
                )
                raise RequestError(Fault.OVERLOADED, problem, retry_after_s=wait_s)
            row_bytes = self._database.settings.telemetry.row_limit_bytes
            found = batches(content, IntakeLimits(self._settings.lines_limit, self._settings.sources_limit, row_bytes))
            limit = self._database.settings.telemetry.batch_limit_rows
            if sum(len(batch.rows) for batch in found) > limit:
                raise RequestError(Fault.TOO_LARGE, f"more than {limit} rows at once; send fewer")
            counted = Counter[str]()
            with self._database.write() as connection:
                answers = self._stored(connection, device, found, tail.storing(connection, now), counted)
            self._counts.update(counted)  # only of what is on the disk
            return answers

    def _stored(
        self, connection: Connection, device: str, found: Sequence[Batch], now: datetime, counted: Counter[str]
    ) -> list[Acknowledgement]:
        answers: list[Acknowledgement] = []
        fresh: dict[str, list[Row]] = {}
        settings, keys = self._database.settings.telemetry, set[str]()
        for batch in found:
            repeated = _repeated(connection, device, batch.rows, keys) if batch.stream == UPDATES else ()
            answer = telemetry.receive(connection, device, batch, now, settings, repeated=repeated)
            answers.append(Acknowledgement(batch.stream, batch.boot_epoch, answer.contiguous))
            fresh.setdefault(batch.stream, []).extend(answer.fresh)
            if batch.stream == VITALS and answer.fresh:
                row = answer.fresh[-1]
                known = KnownMachine(**before) if (before := devices.machine(connection, device)) else None
                use, after = judge(known, batch.boot_epoch, hardware(row.document))
                if after != known:
                    devices.report_machine(connection, device, asdict(after), now if use is IdentityUse.TWICE else None)
                if use is IdentityUse.MOVED:
                    changed = {"hardware": after.hardware, "hardware_before": after.before}
                    event = Event(device, f"{MOVED} {batch.boot_epoch}", row.at, MOVED, document=changed)
                    events.record(connection, [event], now, self._database.settings)
            counted["telemetry_rows"] += answer.stored
            for reason, count in answer.left.items():
                counted[f"telemetry_left_{reason.replace(' ', '_').replace(',', '')}"] += count
        state, updates = fresh.get(STATE, ()), fresh.get(UPDATES, ())
        if state or updates:
            counted.update(self._apply(connection, device, state, updates, now))
        return answers

    def _apply(
        self, connection: Connection, device: str, state: Sequence[Row], updates: Sequence[Row], now: datetime
    ) -> Counter[str]:
        """Apply new rows to the device, its slots, and updates that ended.

        Return the number of reports by their effect.
        """
        slots = [found for row in state if row.kind == SLOT and (found := slot_report(device, row.document, row.at))]
        latest = {one.slot: one.running for one in slots}
        if latest:
            there = [running for running in latest.values() if running]
            devices.report_slots(connection, device, there, [slot for slot, running in latest.items() if not running])
        how = [one for row in state if row.kind == DEVICE and (one := health(row.document))]
        if how:
            devices.report_health(connection, device, how[-1].state, how[-1].details, how[-1].profile)
        slot_reports = [(name(row.document.get("slot")), reported(device, row.document)) for row in updates]
        slot_reports += [(slot.slot, slot.made) for slot in slots]
        reports = [(slot, made) for slot, made in slot_reports if slot and made]
        concerned = rollouts.of_device(connection, device, {slot for slot, _ in reports}, CONCERNED) if reports else ()
        named = {(rollout.slot, rollout.target): rollout.id for rollout in concerned}
        ended = (update_event(device, row) for row in updates)
        attributed = [replace(event, rollout=named.get((event.slot, event.target), "")) for event in ended if event]
        events.record(connection, attributed, now, self._database.settings)
        recorded = sum(
            self._record(connection, rollout, [made for slot, made in reports if slot == rollout.slot], now)
            for rollout in concerned
        )
        return Counter({"reports_recorded": recorded, "reports_without_effect": max(0, len(reports) - recorded)})

    # ---- facts -------------------------------------------------------------------------------------------------------
    def _record(self, connection: Connection, rollout: StoredRollout, reports: Sequence[Made], now: datetime) -> int:
        """Record those of one device's reports that change something, in their order. Return how many."""
        known = self._states.read(connection, rollout.id, self._database.settings)
        self._states.keep(known)
        changed = self._changing(known, answered(connection, known, reports), now)
        if changed:
            facts = [new_fact(now, report) for report in changed]
            rollouts.record(connection, rollout.id, facts, self._database.settings)
        return len(changed)

    def _changing(self, known: RecordedRollout, reports: Sequence[Reported], now: datetime) -> list[Reported]:
        """Return the reports that change the device's state in the rollout.

        Only this device's state is folded: a fold copies the table of members, and some devices report a lot.
        """
        mine = {report.device: known.state.members.get(report.device) for report in reports}
        state = replace(known.state, members={device: member for device, member in mine.items() if member})
        changed = []
        for report in reports if state.members else ():
            after = fold(known.spec, [Fact(state.seq + 1, now, report)], state)
            if self._matters(state.members[report.device], after.members[report.device], known.spec, now):
                state = after
                changed.append(report)
        return changed

    def _matters(self, before: Member, after: Member, spec: Spec, now: datetime) -> bool:
        """Return whether a change of a member's state is to be recorded.

        That an update is still in progress is recorded now and then, often enough not to be taken for silence. That a
        device holds it back, which may last for hours, is recorded at once.
        """
        if before == after:
            return False
        held = after.held and not (before.held or before.held_for)
        goes_on = before.state is after.state and before.state in IN_FLIGHT and not held
        often_s = min(self._settings.progress_every_s, spec.silence_s / RECORDS_PER_SILENCE)
        return not goes_on or now - before.heard_at >= timedelta(seconds=often_s)


def _repeated(connection: Connection, device: str, rows: Sequence[Row], keys: set[str]) -> frozenset[int]:
    """Return the numbers of rows on updates whose key is stored, or in `keys`; add the keys of these rows."""
    telemetry.hold(connection, device)
    key_of = {row.seq: event.key for row in rows if (event := update_event(device, row))}
    known = events.known(connection, device, key_of.values()) | keys
    keys.update(key_of.values())
    first = {key: seq for seq, key in reversed(key_of.items())}
    return frozenset(seq for seq, key in key_of.items() if key in known or first[key] != seq)
