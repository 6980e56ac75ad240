"""Move of a whole fleet into another database, of the same kind or the other one.

Neither database is ever open to a controller in between. The source is locked until its copy is on the disk and is then
marked. The target is filled in one transaction and is marked until the source is. If the move is killed at any moment,
the same command starts over, or only removes the last mark.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.audit import Break, Head
from fleet.controller.database import assignments, audit, changes, marks, migrate, numbers
from fleet.controller.database.copying import Progress, copy_rows, counts
from fleet.controller.database.engine import PROGRAM, Database
from fleet.controller.database.marks import ARRIVING, MOVED, Mark
from fleet.controller.database.place import DatabaseLocation
from fleet.controller.database.tables import metadata
from gateway.common.domain.errors import ConfigurationError, UnreachableError

UNDO = "where that database is lost: edge-fleet migrate --undo-move"
_OTHERS = sa.text(
    "SELECT count(*) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = :program AND pid <> pg_backend_pid()"
)
_VERSION_TABLE = "alembic_version"
_ASK_AGAIN_S = 0.1


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents that source and target must have in common.

    `log`: end of the audit log, or its first broken entry.
    """

    revision: str
    rows: Mapping[str, int]
    log: Head | Break

    @property
    def total(self) -> int:
        """Return the number of rows of all tables."""
        return sum(self.rows.values())


def move(old: Database, new: Database, now: datetime, progress: Progress) -> Contents:
    """Copy all of `old` into `new` and mark `old` as moved there. Both come from `open_alone`.

    A move that was interrupted is continued by the same call; a complete one changes nothing. Raise ConfigurationError,
    UnreachableError if a controller uses `old`, AwayError.
    """
    one, other = old.place.file, new.place.file
    same_file = one and other and other.exists() and one.exists() and one.samefile(other)
    if same_file or old.place.setting == new.place.setting:
        problem = "is the database that the fleet uses now; name another one with --to"
        raise ConfigurationError(problem, file=str(new.place))
    with migrate.exclusive(old) as source:
        mark, copied = marks.read(source, MOVED), None
        if mark is None:
            migrate.refuse_unusable(old, source)
            mark = Mark(secrets.token_hex(16), new.place.setting, now)
            copied = _copy(old, source, new, mark, progress)
            marks.put(source, MOVED, mark)
    if mark.other != new.place.setting:
        raise ConfigurationError(f"the fleet moved to {mark.other} already; {UNDO}", file=str(old.place))
    return _open(old.place, new, mark, copied)


def undo(database: Database) -> int:
    """Remove the mark of a database whose successor is lost, and leap over the versions that the successor issued.

    Return the new base of versions. Raise ConfigurationError if there is no mark, AwayError.
    """
    with migrate.exclusive(database) as connection:
        if marks.read(connection, MOVED) is None:
            raise ConfigurationError("is not marked as moved; there is nothing to undo", file=str(database.place))
        migrate.refuse_revision(database.place, connection)
        marks.remove(connection, MOVED)
        changes.leap(connection, database.settings.restore_leap)
        numbers.leap(connection, database.settings.restore_leap)
        return assignments.leap(connection, database.settings.restore_leap)


def _copy(old: Database, source: Connection, new: Database, mark: Mark, progress: Progress) -> Contents:
    _hold(old, source)
    if (revision := migrate.revision_of(source)) != migrate.newest():
        problem = f"its tables are of {revision or 'none'}, not of {migrate.newest()}; first: edge-fleet migrate"
        raise ConfigurationError(problem, file=str(old.place))
    before = _contents(old, source)
    with migrate.exclusive(new) as target:
        _clear(new.place, target, old.place)
        marks.put(target, ARRIVING, Mark(mark.id, old.place.setting, mark.at))
        migrate.make_tables(target)
        copy_rows(old, source, target, before.total, progress)
        if found := different(before, _contents(new, target)):
            problem = f"differs from {old.place} after the copy ({found}); nothing was moved, report this as a defect"
            raise ConfigurationError(problem, file=str(new.place))
    return before


def _hold(old: Database, source: Connection) -> None:
    """Keep every other program from changing the source. For SQLite `open_alone` did so."""
    if old.place.file is not None:
        return
    until = time.monotonic() + old.settings.busy_timeout_ms / 1000
    while others := _others(source):
        if time.monotonic() > until:
            problem = f"a controller runs: {others} connections of edge-fleet use it"
            problem += "; stop edge-fleet serve on every machine, and try again"
            raise UnreachableError(problem, file=str(old.place))
        time.sleep(_ASK_AGAIN_S)
    quote = source.dialect.identifier_preparer.quote
    source.exec_driver_sql(f"LOCK TABLE {', '.join(map(quote, metadata.tables))} IN EXCLUSIVE MODE")


def _others(source: Connection) -> int:
    """Return how many connections other programs have. PostgreSQL takes a moment to end a closed one."""
    source.execute(sa.select(sa.func.pg_stat_clear_snapshot()))
    return int(source.execute(_OTHERS, {"program": PROGRAM}).scalar_one())


def _contents(database: Database, connection: Connection) -> Contents:
    revision = migrate.revision_of(connection)
    return Contents(revision, counts(connection), audit.verify(connection, database.settings))


def different(before: Contents, after: Contents) -> str:
    """Return in words what differs, or "" for nothing."""
    changed = [name for name in before.rows if before.rows[name] != after.rows.get(name)]
    found = [f"{name}: {before.rows[name]} rows, then {after.rows.get(name)}" for name in changed]
    found += [f"tables of {before.revision}, then {after.revision}"] if before.revision != after.revision else []
    found += [f"audit log: {before.log}, then {after.log}"] if before.log != after.log else []
    return "; ".join(found)


def _clear(place: DatabaseLocation, target: Connection, source: DatabaseLocation) -> None:
    """Remove the rest of an earlier attempt. Raise ConfigurationError if the target holds anything else."""
    if earlier := marks.read(target, ARRIVING):
        _check_source(place, earlier, source)
        migrate.refuse_revision(place, target)
        migrate.drop_tables(target)
        marks.remove(target, ARRIVING)
    if left := {*sa.inspect(target).get_table_names()} - {_VERSION_TABLE}:
        problem = f"holds {len(left)} tables already; name an empty database with --to, or a file that is not there"
        raise ConfigurationError(problem, file=str(place))


def _check_source(place: DatabaseLocation, arriving: Mark, source: DatabaseLocation) -> None:
    if arriving.other != source.setting:
        problem = f"holds a move from {arriving.other} that did not end; end that one, or name another database"
        raise ConfigurationError(problem, file=str(place))


def _open(old: DatabaseLocation, new: Database, mark: Mark, copied: Contents | None) -> Contents:
    """Remove the target's mark, so that a controller may start there."""
    with migrate.exclusive(new) as target:
        if arriving := marks.read(target, ARRIVING):
            _check_source(new.place, arriving, old)
            marks.remove(target, ARRIVING)
        elif not migrate.revision_of(target):
            problem = f"holds no tables, but {old} is marked as moved to it at {mark.at:%Y-%m-%d %H:%M} UTC; {UNDO}"
            raise ConfigurationError(problem, file=str(new.place))
        return copied or _contents(new, target)
