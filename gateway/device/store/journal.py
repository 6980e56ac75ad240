"""Persistent state of updates: floors, the accepted assignment, updates in progress, and rejected releases.

One SQLite file, mode 0600, written by the agent only. Every call that changes something is one transaction, which is on
the disk when the call returns. A damaged or missing journal is an error and is never recreated, because all floors
would be lost.

COMMIT and power loss: `record(slot, Step.COMMIT, …)` precedes the replacement of `active.json`, and `Step.RETIRE`
follows it. If the journal is opened with an update at COMMIT, `active.json` is replaced again (`active.committed` is
idempotent) and the update continues. `committed` is reported from RETIRE on: then both files are on the disk.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Assignment
from gateway.common.domain.update import ENDS, REVOCABLE, Failure, Step, after
from gateway.common.store.errors import StoreAbsentError, StoreError
from gateway.common.store.settings import JournalSettings
from gateway.common.store.sqlite_file import SqliteFile
from gateway.device.store import journal_rows as rows
from gateway.device.store.journal_file import create_file, open_file
from gateway.device.store.journal_rows import Accepted, Floors, Rejection, Update


class Journal:
    """Journal. Open it with `Journal.open(folder)`; close it at the end. Used by one thread at a time."""

    def __init__(self, file: SqliteFile, settings: JournalSettings) -> None:
        self._file = file
        self._settings = settings

    @classmethod
    def create(cls, folder: Path, settings: JournalSettings | None = None) -> Journal:
        """Open the journal, and create it if there is none, for the bootstrap of a device. Safe to repeat."""
        settings = settings or JournalSettings()
        return cls(create_file(folder, settings), settings)

    @classmethod
    def open(cls, folder: Path, settings: JournalSettings | None = None) -> Journal:
        """Open the journal. Raises AbsentError if there is none, DamagedError if it cannot be trusted, StoreError."""
        settings = settings or JournalSettings()
        return cls(open_file(folder, settings), settings)

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        self._file.close()

    # ---- floors -----------------------------------------------------------------------------------------------------
    def floors(self) -> Floors:
        """Return all floors."""
        numbers = {row["name"]: row["value"] for row in self._file.ask("SELECT name, value FROM floor")}
        versions = {row["name"]: row["value"] for row in self._file.ask("SELECT name, value FROM version_floor")}
        return rows.floors(numbers, versions)

    def floor(self, name: str) -> int:
        """Return the least accepted version of a metadata role or document; 0 if none was seen."""
        return self.floors().numbers.get(name, 0)

    def version_floor(self, model: str) -> str:
        """Return the least accepted version of a model, by `version_order`; "" if none was seen."""
        return self.floors().versions.get(model, "")

    def time_floor(self) -> datetime | None:
        """Return the greatest reference time at which everything verified, or None. The current time is not earlier."""
        return self.floors().time

    def raise_floors(self, floors: Floors) -> None:
        """Raise the floors that are lower than `floors`; no floor is ever lowered. Raises StoreError."""
        with self._file.transaction():
            self._raise(floors)

    def _raise(self, floors: Floors) -> None:
        numbers, versions = rows.lifted(self.floors(), floors)
        for name, value in numbers.items():
            self._file.do("INSERT OR REPLACE INTO floor VALUES (?, ?)", (name, value))
        for name, version in versions.items():
            self._file.do("INSERT OR REPLACE INTO version_floor VALUES (?, ?)", (name, version))
        now = self.floors()
        if max(len(now.numbers), len(now.versions)) > self._settings.floors_limit:
            problem = f"more than {self._settings.floors_limit} names would have a floor; publish under fewer names"
            raise StoreError(problem, file=self._file.path)

    # ---- the assignment ---------------------------------------------------------------------------------------------
    def accept(self, assignment: Assignment, content: bytes, floors: Floors) -> None:
        """Store an assignment with the signed `content` that it was read from, and raise `floors`, in one transaction.

        `floors` includes the floor of assignments, by the keys that signed this one (`common.trust.floors`). A floor
        raised with a stolen key thus ends with that key.
        """
        # One transaction: after a power failure between the two, an older assignment could replace this one.
        with self._file.transaction():
            self._raise(floors)
            digest = hashlib.sha256(content).hexdigest()
            row = (1, digest, content, rows.assignment_text(assignment))
            self._file.do("INSERT OR REPLACE INTO assignment VALUES (?, ?, ?, ?)", row)
            # the rejections of releases that are no longer assigned go: a later assignment is a new decision
            for found in self._file.ask("SELECT id, slot, release FROM rejected"):
                target = assignment.slots.get(found["slot"])
                if target is None or target.sha256 != found["release"]:
                    self._file.do("DELETE FROM rejected WHERE id = ?", (found["id"],))
            # an update in progress gets the latest attempt at the same release, so that it does not run twice
            for update in self.updates():
                target, attempt = assignment.slots.get(update.slot), assignment.attempt(update.slot)
                if target is not None and target.sha256 == update.activation.release and attempt > update.attempt:
                    self._put(replace(update, attempt=attempt, assignment_version=assignment.version))

    def accepted(self) -> Accepted | None:
        """Return the last accepted assignment: the releases that this device must run."""
        found = self._file.ask("SELECT * FROM assignment")
        return self._file.read(rows.accepted, found[0]) if found else None

    # ---- updates ----------------------------------------------------------------------------------------------------
    def begin(self, activation: Activation, assignment_version: int, now: datetime, attempt: int = 0) -> Update:
        """Begin an update of `activation.slot`, at FETCH. Raises StoreError if one is in progress."""
        with self._file.transaction():
            if self.update(activation.slot):
                raise StoreError(f"an update of {activation.slot} is under way; finish it first", file=self._file.path)
            update = Update(activation, Step.FETCH, assignment_version, now, now, attempt=attempt)
            self._put(update)
        return update

    def update(self, slot: str) -> Update | None:
        """Return the update in progress in `slot`, or None."""
        found = self._file.ask("SELECT * FROM update_under_way WHERE slot = ?", (slot,))
        return self._file.read(rows.update, found[0]) if found else None

    def updates(self) -> tuple[Update, ...]:
        """Return all updates in progress, the oldest first."""
        found = self._file.ask("SELECT * FROM update_under_way ORDER BY started_at, slot")
        return tuple(self._file.read(rows.update, row) for row in found)

    def record(self, slot: str, step: Step, now: datetime, activation: Activation | None = None) -> Update:
        """Record the next step before it is done. `activation`: its current state, if that has changed.

        Steps before COMMIT may be repeated from an earlier one (after a boot nothing is loaded). From COMMIT on the
        order is fixed. Raises ValueError for a step that may not follow, AbsentError, StoreError.
        """
        if step is Step.ROLL_BACK or step in ENDS:
            raise ValueError(f"{step.name} is recorded by `fail` or `finish`")
        with self._file.transaction():
            update = self._under_way(slot)
            if not rows.may_follow(update.step, step):
                raise ValueError(f"{step.name} may not follow {update.step.name} in the update of {slot}")
            if activation is not None and activation.slot != slot:
                raise ValueError(f"an activation of {activation.slot} is none of {slot}")
            updated = replace(update, activation=activation or update.activation, step=step, changed_at=now)
            self._put(updated)
        return updated

    def fail(self, slot: str, failure: Failure, now: datetime, *, reject: bool = True) -> Update:
        """Record that an update is to be rolled back, and reject its release if `reject`, in one transaction.

        Raises ValueError from COMMIT on, because the update must then be completed, or if it failed already;
        StoreError.
        """
        with self._file.transaction():
            update = self._under_way(slot)
            if update.step not in REVOCABLE:
                raise ValueError(f"the update of {slot} is at {update.step.name}: it is too late to fail")
            failed = replace(update, step=Step.ROLL_BACK, changed_at=now, failure=failure)
            self._put(failed)
            if reject:
                self._reject(Rejection(slot, update.activation.release, failure.reason, update.attempt), now)
        return failed

    def finish(self, slot: str, now: datetime) -> Update:
        """Move an update to the history after RETIRE or ROLL_BACK. Raises ValueError, AbsentError."""
        with self._file.transaction():
            update = self._under_way(slot)
            if update.step not in {Step.RETIRE, Step.ROLL_BACK}:
                raise ValueError(f"the update of {slot} is at {update.step.name}, which is not its last step")
            ended = replace(update, step=after(update.step), changed_at=now)
            self._file.do("DELETE FROM update_under_way WHERE slot = ?", (slot,))
            self._file.do(f"INSERT INTO finished ({rows.UPDATE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", rows.row(ended))  # noqa: S608
            self._forget_oldest("finished", self._settings.finished_limit)
        return ended

    def finished(self, limit: int) -> tuple[Update, ...]:
        """Return the finished updates, the latest first."""
        found = self._file.ask("SELECT * FROM finished ORDER BY id DESC LIMIT ?", (limit,))
        return tuple(self._file.read(rows.update, row) for row in found)

    def _under_way(self, slot: str) -> Update:
        update = self.update(slot)
        if update is None:
            raise StoreAbsentError(f"no update of {slot} is under way", file=self._file.path)
        return update

    def _put(self, update: Update) -> None:
        statement = f"INSERT OR REPLACE INTO update_under_way ({rows.UPDATE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
        self._file.do(statement, rows.row(update))

    # ---- rejections -------------------------------------------------------------------------------------------------
    def reject(self, rejection: Rejection, now: datetime) -> None:
        """Reject a release in a slot until another one was assigned to the slot, or a greater attempt is assigned.

        Raises StoreError.
        """
        with self._file.transaction():
            self._reject(rejection, now)

    def rejected(self, slot: str, release: str, attempt: int = 0) -> str:
        """Return why a release was rejected, at this attempt or a later one, or ""."""
        query = "SELECT reason FROM rejected WHERE slot = ? AND release = ? AND attempt >= ?"
        found = self._file.ask(query, (slot, release, attempt))
        return str(found[0]["reason"]) if found else ""

    def _reject(self, rejection: Rejection, now: datetime) -> None:
        key = (rejection.slot, rejection.release)
        self._file.do("DELETE FROM rejected WHERE slot = ? AND release = ?", key)
        row = (*key, rejection.reason or "rejected", rows.time_text(now), rejection.attempt)
        self._file.do("INSERT INTO rejected (slot, release, reason, at, attempt) VALUES (?, ?, ?, ?, ?)", row)
        self._forget_oldest("rejected", self._settings.rejected_limit)

    def _forget_oldest(self, table: str, limit: int) -> None:
        """Remove the oldest rows by id, which only grows: many boards start without the correct time."""
        self._file.do(
            f"DELETE FROM {table} WHERE id NOT IN (SELECT id FROM {table} ORDER BY id DESC LIMIT ?)",  # noqa: S608
            (limit,),
        )

    # ---- facts ------------------------------------------------------------------------------------------------------
    def fact(self, name: str) -> str | None:
        """Return a small value by `name` (an ETag, the device's name, the result of the last sync), or None."""
        found = self._file.ask("SELECT value FROM fact WHERE name = ?", (name,))
        return str(found[0]["value"]) if found else None

    def keep_facts(self, facts: Mapping[str, str]) -> None:
        """Store all values in one transaction; each replaces the previous one. Raises StoreError."""
        with self._file.transaction():
            for name, value in facts.items():
                self._file.do("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))
