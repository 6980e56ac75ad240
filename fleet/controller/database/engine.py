"""Connections and transactions.

A read sees a snapshot of the database. A write happens whole or not at all, and is on the disk when it returns.

SQLite: one writer at a time (`BEGIN IMMEDIATE`, so that it never fails half way because another one wrote). Writers of
one process queue for the one connection instead of retrying. PostgreSQL: READ COMMITTED for writes; statements that
decide lock the rows that they decide on.
"""

from __future__ import annotations

import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Engine, Table, event
from sqlalchemy.dialects import postgresql, sqlite

from fleet.controller.database.errors import AwayError, ConflictError, RefusedError
from fleet.controller.database.place import DatabaseLocation
from fleet.controller.database.settings import DatabaseSettings

Connection = sa.Connection
"""Connection that the functions of this package take; their callers need no SQLAlchemy."""
Effect = Callable[[], object]
Insert = sqlite.Insert | postgresql.Insert
DAMAGED = ("malformed", "file is not a database")
"""SQLite's errors on a file that it can no longer read (SQLITE_CORRUPT, SQLITE_NOTADB)."""
FULL = ("disk is full", "No space left on device")
"""Errors of SQLite and PostgreSQL on a full disk."""
LOCKED = "database is locked"
"""SQLite's error on a file that another connection holds."""
PROGRAM = "edge-fleet"
"""Name of these connections in PostgreSQL."""
_ASK_AGAIN_S = 0.01
_COMMON: dict[str, Any] = {
    "hide_parameters": True,  # an error's text goes to logs; digests of tokens do not
    "execution_options": {"preserve_rowcount": True},  # an INSERT … ON CONFLICT says by it whether it did anything
}


@dataclass(slots=True)
class UnitOfWork:
    """Transaction that the first write of a request begins; later writes are savepoints in it. `begun` runs first.

    `effects` wait for the commit: what others see in memory must not be ahead of the database.
    """

    begin: Callable[[], AbstractContextManager[Connection]]
    begun: Callable[[Connection], None]
    opened: ExitStack
    connection: Connection | None = None
    effects: list[Effect] = field(default_factory=list)

    def join(self) -> Connection:
        """Return its connection; begin the transaction if this is the first write."""
        if self.connection is None:
            self.connection = self.opened.enter_context(self.begin())
            self.begun(self.connection)
        return self.connection


_current: ContextVar[UnitOfWork | None] = ContextVar("unit", default=None)
"""Unit of this thread."""


@dataclass(frozen=True, slots=True)
class Database:
    """A database, opened by `open_database`. Any number of threads may use it. `close` it when done."""

    place: DatabaseLocation
    settings: DatabaseSettings
    glances: Engine
    reads: Engine
    writes: Engine

    @contextmanager
    def glance(self) -> Iterator[Connection]:
        """Yield a connection for statements that only read and each see their own snapshot. Raise AwayError.

        On PostgreSQL it saves the round trips of a transaction, which take most of the time of a `read`.
        """
        with self.translated(), self.glances.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that reads a snapshot of the database. Raise AwayError."""
        with self.translated(), self.reads.connect() as connection, connection.begin():
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Yield a connection whose changes are committed when the body ends, or rolled back if it raises.

        Within a unit they are committed together with all that the unit writes. Raise AwayError, ConflictError for what
        exists already, RefusedError for what cannot be stored.
        """
        unit = _current.get()
        if unit is None:
            with self._begun() as connection:
                yield connection
            return
        connection = unit.join()
        with self.translated(), connection.begin_nested():
            yield connection

    @contextmanager
    def unit(self, begun: Callable[[Connection], None]) -> Iterator[UnitOfWork]:
        """Make all writes of this thread one transaction, which ends with the body.

        `begun` runs in it before the first write. Raise what `write` raises.
        """
        with ExitStack() as opened:
            unit = UnitOfWork(self._begun, begun, opened)
            opened.callback(_current.reset, _current.set(unit))
            yield unit
        for effect in unit.effects:
            effect()

    def after_commit(self, effect: Effect) -> None:
        """Run `effect` once what was written is on the disk: now, or at the end of the unit."""
        unit = _current.get()
        if unit is None:
            effect()
        else:
            unit.effects.append(effect)

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        with self.translated(), self.writes.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close all connections; one in use is closed when it is returned. A second call has no effect."""
        for engine in (self.reads, self.writes):
            event.listen(engine.pool, "checkin", lambda _opened, record: record.invalidate())
            engine.dispose()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise errors of SQLAlchemy as errors of `fleet.controller.database.errors`."""
        try:
            yield
        except sa.exc.IntegrityError as error:
            raise ConflictError(f"the database refuses it: {_first_line(error)}") from error
        except sa.exc.DataError as error:
            raise RefusedError(f"the database cannot keep it: {_first_line(error)}") from error
        except sa.exc.TimeoutError as error:
            raise self._away(f"all connections were in use for {self.settings.connection_wait_s:g} s") from error
        except sa.exc.DBAPIError as error:
            raise self._away(_first_line(error)) from error

    def _away(self, problem: str) -> AwayError:
        remedy = "try again, and check the database if this persists"
        if any(words in problem for words in DAMAGED):
            remedy = "stop what uses it, move it away with its -wal, and restore a backup: edge-fleet backup restore"
        elif any(words in problem for words in FULL):
            remedy = "free space on its disk, and try again"
        elif LOCKED in problem:
            remedy = "a controller runs, or another program uses it; stop it (edge-fleet serve), and try again"
        message = f"the database {self.place} cannot be used now: {problem}; {remedy}"
        return AwayError(message, self.settings.retry_after_s)


def open_database(place: DatabaseLocation, settings: DatabaseSettings | None = None) -> Database:
    """Open a database without connecting to it; `migrate.upgrade` creates the tables.

    Raise OSError (SQLite's folder).
    """
    settings = settings or DatabaseSettings()
    if place.file is None:
        return _postgresql(place, settings)
    place.make_file()
    reads = _sqlite(place, settings, settings.connections, "BEGIN", "query_only = ON")
    return Database(place, settings, reads, reads, _sqlite(place, settings, 1, "BEGIN IMMEDIATE"))


def open_alone(place: DatabaseLocation, settings: DatabaseSettings) -> Database:
    """Open a database for `migrate.exclusive` alone.

    SQLite then fails while another connection has the file open. It uses no write-ahead log, so that one large
    transaction into an empty file takes no second copy of it on the disk.
    """
    if place.file is None:
        return _postgresql(place, settings)
    place.make_file()
    alone_engine = _sqlite(place, settings, 1, "BEGIN EXCLUSIVE", "journal_mode = DELETE")
    return Database(place, settings, alone_engine, alone_engine, alone_engine)


def adding(connection: Connection, table: Table) -> Insert:
    """Return an INSERT that supports ON CONFLICT, which SQLAlchemy has per dialect only."""
    return sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)


def alone(connection: Connection, what: str) -> None:
    """Hold an advisory lock on `what` until the transaction ends. On SQLite a write is alone anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock_number(what))))


def held_locks(connection: Connection, first: int) -> list[int]:
    """Return the second halves of advisory locks of PostgreSQL that transactions in this database hold."""
    return [*connection.execute(_HELD, {"first": first}).scalars()]


def try_alone(connection: Connection, what: str) -> bool:
    """Take the lock of `alone` without waiting. Return whether it was free."""
    if connection.dialect.name != "postgresql":
        return True
    return bool(connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(lock_number(what)))).scalar_one())


def lock_number(what: str) -> int:
    """Return the number of an advisory lock of PostgreSQL: 64 bits, signed."""
    return int.from_bytes(hashlib.sha256(what.encode(errors="surrogatepass")).digest()[:8], "big", signed=True)


def server_version(database: Database) -> tuple[int, ...]:
    """Return the version of PostgreSQL, as (15, 5); () for SQLite. Raise AwayError."""
    with database.read() as connection:
        dialect = connection.dialect
        return tuple(map(int, dialect.server_version_info or ())) if dialect.name == "postgresql" else ()


def connected_apart(database: Database) -> Connection:
    """Return a connection to PostgreSQL outside the pool, without transactions.

    `close` ends it for good. Raise AwayError.
    """
    engine = _server(database.place, database.settings, poolclass=sa.NullPool)
    with database.translated():
        return engine.connect().execution_options(isolation_level="AUTOCOMMIT")


def _postgresql(place: DatabaseLocation, settings: DatabaseSettings) -> Database:
    pool = {"pool_size": settings.connections, "max_overflow": 0, "pool_timeout": settings.connection_wait_s}
    engine = _server(place, settings, **pool)
    reads = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return Database(place, settings, engine.execution_options(isolation_level="AUTOCOMMIT"), reads, engine)


def _server(place: DatabaseLocation, settings: DatabaseSettings, **pool: Any) -> Engine:
    options = (
        f"-c statement_timeout={settings.statement_timeout_ms} -c lock_timeout={settings.busy_timeout_ms} "
        f"-c idle_in_transaction_session_timeout={2 * settings.statement_timeout_ms} -c timezone=UTC"
    )
    every_s = max(1, settings.silence_s // 3)
    silence = {"keepalives_idle": every_s, "keepalives_interval": every_s, "keepalives_count": 2}
    patience = {"connect_timeout": settings.connect_timeout_s, "tcp_user_timeout": 1000 * settings.silence_s}
    arguments = {"options": options, "application_name": PROGRAM, **silence, **patience}
    return sa.create_engine(place.url, connect_args=arguments, **_COMMON, **pool)


def _sqlite(place: DatabaseLocation, settings: DatabaseSettings, connections: int, begin: str, *pragmas: str) -> Engine:
    engine = sa.create_engine(
        place.url,
        **_COMMON,
        poolclass=sa.QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=settings.connection_wait_s,
        connect_args={"check_same_thread": False, "timeout": settings.busy_timeout_ms / 1000},
    )

    @event.listens_for(engine, "connect")
    def prepare(opened: Any, _record: object) -> None:
        opened.isolation_level = None  # Python's own BEGIN comes too late and is not IMMEDIATE
        _to_write_ahead(opened, settings.busy_timeout_ms / 1000)
        for pragma in ("synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF", *pragmas):
            opened.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def start(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _to_write_ahead(opened: sqlite3.Connection, patience_s: float) -> None:
    """Switch to the write-ahead log, and retry while another connection does so.

    Two connections that open a new file at once both turn from reader to writer, for which SQLite does not wait.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            opened.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if str(error) != "database is locked" or time.monotonic() > until:
                raise
            time.sleep(_ASK_AGAIN_S)
        else:
            return


def _first_line(error: sa.exc.DBAPIError) -> str:
    """Return the database's message without the details line, which contains values."""
    return (str(error.orig).strip().splitlines() or [type(error.orig).__name__])[0][:300]


_HELD = sa.text(
    "SELECT objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND granted "
    "AND classid = :first AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
