"""What the device must never forget: floors, the assignment it accepted, updates under way, what it rejected.

One SQLite file, 0600, written by the agent alone. Every call that changes something is one transaction, on the disk
when the call returns. A damaged or missing journal is an error and never begun anew: all floors would fall with it.

COMMIT under power loss: `record(slot, Step.COMMIT, …)` comes before `active.json` is replaced, and `Step.RETIRE` after.
Whoever opens the journal and finds an update at COMMIT replaces `active.json` again (`active.committed`, the same twice
as once) and goes on. `committed` is reported from RETIRE on: both files are on the disk by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from gateway.domain.activation import Activation
from gateway.domain.assignment import Assignment, Target
from gateway.domain.update import ENDS, REVOCABLE, Failure, Step, after
from gateway.store import journal_rows as rows
from gateway.store.errors import AbsentError, StoreError
from gateway.store.journal_file import JournalFile
from gateway.store.journal_rows import Accepted, Floors, Rejection, Update
from gateway.store.settings import JournalSettings


class Journal:
    """Open with `Journal.open(folder)`; close when done. Used by one thread at a time."""

    def __init__(self, file: JournalFile, settings: JournalSettings) -> None:
        self._file = file
        self._settings = settings

    @classmethod
    def create(cls, folder: Path, settings: JournalSettings | None = None) -> Journal:
        """For the bootstrap of a device: as `open`, and makes the journal where there is none. Safe to repeat."""
        settings = settings or JournalSettings()
        return cls(JournalFile.create(folder, settings), settings)

    @classmethod
    def open(cls, folder: Path, settings: JournalSettings | None = None) -> Journal:
        """Raises AbsentError where there is no journal, DamagedError for one that cannot be trusted, StoreError."""
        settings = settings or JournalSettings()
        return cls(JournalFile.open(folder, settings), settings)

    def close(self) -> None:
        """Close the file. Calling it twice is harmless."""
        self._file.close()

    # ---- floors -----------------------------------------------------------------------------------------------------
    def floors(self) -> Floors:
        """All of them."""
        numbers = {row["name"]: row["value"] for row in self._file.ask("SELECT name, value FROM floor")}
        versions = {row["name"]: row["value"] for row in self._file.ask("SELECT name, value FROM version_floor")}
        return rows.floors(numbers, versions)

    def floor(self, name: str) -> int:
        """The least version of a metadata role or document that is still accepted; 0 where none was seen."""
        return self.floors().numbers.get(name, 0)

    def version_floor(self, model: str) -> str:
        """The least version of a model that is still accepted, by `version_order`; "" where none was seen."""
        return self.floors().versions.get(model, "")

    def time_floor(self) -> datetime | None:
        """It is at least that late: the greatest reference time at which everything verified."""
        return self.floors().time

    def raise_floors(self, floors: Floors) -> None:
        """Lift what is lower than `floors`, leave the rest: none ever falls. Raises StoreError."""
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
            problem = f"more than {self._settings.floors_limit} names would have a floor; raise floors_limit"
            raise StoreError(problem, file=self._file.path)

    # ---- the assignment ---------------------------------------------------------------------------------------------
    def accept(self, assignment: Assignment, content: bytes, floors: Floors) -> None:
        """Keep what was assigned, with the signed `content` it was read from, and lift `floors`, together.

        Among `floors` is that of assignments, by the keys that signed this one (`gateway.trust.floors`): a leap made
        with a stolen key ends with the key. Raises ValueError for more content than is kept.
        """
        if len(content) > self._settings.assignment_limit_bytes:
            raise ValueError(f"the assignment has {len(content)} bytes, more than assignment_limit_bytes")
        with self._file.transaction():
            self._raise(floors)
            digest = hashlib.sha256(content).hexdigest()
            row = (1, digest, content, rows.assignment_text(assignment))
            self._file.do("INSERT OR REPLACE INTO assignment VALUES (?, ?, ?, ?)", row)
            self._forgive(assignment.slots)
            self._adopt(assignment)

    def accepted(self) -> Accepted | None:
        """The last accepted assignment: what this device is to run."""
        found = self._file.ask("SELECT * FROM assignment")
        return self._file.read(rows.accepted, found[0]) if found else None

    # ---- updates ----------------------------------------------------------------------------------------------------
    def begin(self, activation: Activation, assignment_version: int, now: datetime, attempt: int = 0) -> Update:
        """An update of `activation.slot` is under way, at FETCH. Raises StoreError where one is already."""
        with self._file.transaction():
            if self.update(activation.slot):
                raise StoreError(f"an update of {activation.slot} is under way; finish it first", file=self._file.path)
            update = Update(activation, Step.FETCH, assignment_version, now, now, attempt=attempt)
            self._put(update)
        return update

    def update(self, slot: str) -> Update | None:
        """The update under way in `slot`."""
        found = self._file.ask("SELECT * FROM update_under_way WHERE slot = ?", (slot,))
        return self._file.read(rows.update, found[0]) if found else None

    def updates(self) -> tuple[Update, ...]:
        """All updates under way, the oldest first."""
        found = self._file.ask("SELECT * FROM update_under_way ORDER BY started_at, slot")
        return tuple(self._file.read(rows.update, row) for row in found)

    def record(self, slot: str, step: Step, now: datetime, activation: Activation | None = None) -> Update:
        """What is going to be done next, before it is done; `activation`: what is known of it by now.

        Steps before COMMIT may be gone back to (after a boot nothing is loaded); from COMMIT on there is one way only.
        Raises ValueError for a step that may not follow, AbsentError, StoreError.
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
        """The update is to be rolled back, and its release, unless told otherwise, rejected: both or neither.

        Raises ValueError from COMMIT on (it is finished, whatever happens), or where it failed already; StoreError.
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
        """RETIRE or ROLL_BACK is done: the update is over and goes to the history. Raises ValueError, AbsentError."""
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
        """Updates that are over, the latest first."""
        found = self._file.ask("SELECT * FROM finished ORDER BY id DESC LIMIT ?", (limit,))
        return tuple(self._file.read(rows.update, row) for row in found)

    def _under_way(self, slot: str) -> Update:
        update = self.update(slot)
        if update is None:
            raise AbsentError(f"no update of {slot} is under way", file=self._file.path)
        return update

    def _adopt(self, assignment: Assignment) -> None:
        """What is under way answers the latest attempt at the same release: it must not be tried twice for two."""
        for update in self.updates():
            target, attempt = assignment.slots.get(update.slot), assignment.attempt(update.slot)
            if target is not None and target.sha256 == update.activation.release and attempt > update.attempt:
                self._put(replace(update, attempt=attempt, assignment_version=assignment.version))

    def _put(self, update: Update) -> None:
        statement = f"INSERT OR REPLACE INTO update_under_way ({rows.UPDATE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
        self._file.do(statement, rows.row(update))

    # ---- rejections -------------------------------------------------------------------------------------------------
    def reject(self, rejection: Rejection, now: datetime) -> None:
        """This release is not tried again in this slot until another one was assigned to it, or a greater attempt was
        named. Raises StoreError."""
        with self._file.transaction():
            self._reject(rejection, now)

    def rejected(self, slot: str, release: str, attempt: int = 0) -> str:
        """Why it was rejected, at this attempt or a later one; "" where it was not."""
        query = "SELECT reason FROM rejected WHERE slot = ? AND release = ? AND attempt >= ?"
        found = self._file.ask(query, (slot, release, attempt))
        return str(found[0]["reason"]) if found else ""

    def _reject(self, rejection: Rejection, now: datetime) -> None:
        key = (rejection.slot, rejection.release)
        self._file.do("DELETE FROM rejected WHERE slot = ? AND release = ?", key)
        row = (*key, rejection.reason or "rejected", rows.time_text(now), rejection.attempt)
        self._file.do("INSERT INTO rejected (slot, release, reason, at, attempt) VALUES (?, ?, ?, ?, ?)", row)
        self._forget_oldest("rejected", self._settings.rejected_limit)

    def _forgive(self, slots: Mapping[str, Target]) -> None:
        """What is not assigned any more may come again: somebody changed their mind since."""
        for found in self._file.ask("SELECT id, slot, release FROM rejected"):
            target = slots.get(found["slot"])
            if target is None or target.sha256 != found["release"]:
                self._file.do("DELETE FROM rejected WHERE id = ?", (found["id"],))

    def _forget_oldest(self, table: str, limit: int) -> None:
        """By id, which only grows: many boards start without knowing the time."""
        self._file.do(
            f"DELETE FROM {table} WHERE id NOT IN (SELECT id FROM {table} ORDER BY id DESC LIMIT ?)",  # noqa: S608
            (limit,),
        )

    # ---- facts ------------------------------------------------------------------------------------------------------
    def fact(self, name: str) -> str | None:
        """A small value kept under `name` (an ETag, the device's name, how the last sync ended); None where none is."""
        found = self._file.ask("SELECT value FROM fact WHERE name = ?", (name,))
        return str(found[0]["value"]) if found else None

    def keep_facts(self, facts: Mapping[str, str]) -> None:
        """Keep them all, or none, each replacing what was there. Raises StoreError."""
        with self._file.transaction():
            for name, value in facts.items():
                self._file.do("INSERT OR REPLACE INTO fact VALUES (?, ?)", (name, value))
