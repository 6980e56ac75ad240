"""Archive of rollouts: what operators archive and restore, and what is archived by its age."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from fleet.controller.audit import Deed
from fleet.controller.control.rollouts import Permit, Rollouts
from fleet.controller.control.rollouts_record import RecordedRollout
from fleet.controller.database import audit, rollouts
from fleet.controller.database.engine import Connection, Database
from fleet.controller.database.leader import guard
from fleet.controller.database.rollouts import ARCHIVE_LIMIT, StoredRollout
from fleet.times import moment

ACTOR = "the controller"
"""Actor of the automatic archive in the audit log."""


@dataclass(frozen=True, slots=True)
class Archived:
    """Rollouts that were archived, by id. `more`: there may be others; call again."""

    rollouts: tuple[str, ...]
    more: bool


def archive(rolling: Rollouts, rollout: str, by: str, now: datetime, *, permit: Permit) -> RecordedRollout:
    """Archive a rollout.

    Raise ConflictError if it is not over, AbsentError, AwayError, and what `permit` raises.
    """

    def done(connection: Connection) -> bool:
        return rollouts.archive(connection, rollout, now)

    return _change(rolling, Deed(by, "rollouts.archive", rollout), now, permit, done)


def restore(rolling: Rollouts, rollout: str, by: str, now: datetime, *, permit: Permit) -> RecordedRollout:
    """Show an archived rollout in lists again. Raise AbsentError, AwayError, and what `permit` raises."""

    def done(connection: Connection) -> bool:
        return rollouts.restore(connection, rollout)

    return _change(rolling, Deed(by, "rollouts.restore", rollout), now, permit, done)


def archive_before(
    database: Database,
    before: datetime,
    by: str,
    now: datetime,
    *,
    wanted: Callable[[StoredRollout], bool] = lambda _: True,
    fence: int = 0,
) -> Archived:
    """Archive at most `ARCHIVE_LIMIT` rollouts that ended before `before` and are `wanted`.

    One entry in the audit log names them. `fence`: fencing token of the leader that archives by age; 0: an operator
    does. Raise FencedError, AwayError.
    """
    with database.write() as connection:
        if fence:
            guard(connection, fence)
        # The database cannot evaluate `wanted`, so pages are read until enough are found.
        chosen: list[str] = []
        after = ""
        while found := rollouts.over_before(connection, before, after=after):
            chosen += [one.id for one in found if wanted(one)]
            after = found[-1].id
            if len(chosen) >= ARCHIVE_LIMIT or len(found) < ARCHIVE_LIMIT:
                break
        chosen = chosen[:ARCHIVE_LIMIT]
        names = tuple(sorted(chosen))
        if names:
            rollouts.archive_all(connection, names, now)
            details = {"before": moment(before), "rollouts": list(names)}
            audit.append(connection, Deed(by, "rollouts.archive", f"{len(names)} rollouts", details), now)
    return Archived(names, len(names) == ARCHIVE_LIMIT)


def _change(
    rolling: Rollouts, deed: Deed, now: datetime, permit: Permit, done: Callable[[Connection], bool]
) -> RecordedRollout:
    settings, rollout = rolling.database.settings, deed.subject
    with rolling.database.write() as connection:
        permit(rolling.states.read(connection, rollout, settings, lock=True))
        if done(connection):
            audit.append(connection, deed, now)
        return rolling.states.read(connection, rollout, settings)
