"""Brings a database to the tables this program knows, step by step (Alembic), as one transaction under a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from fleet.database import marks
from fleet.database.engine import Database, alone
from gateway.domain.errors import ConfigurationError

SCRIPTS = Path(__file__).parent / "migrations"
_LOCK = "edge-fleet migrates"
UNFINISHED = sa.Table("unfinished_restore", sa.MetaData())
"""Has no columns. It is there while a copy is put into a server, until assignment versions leapt: a controller that
began before would give versions again."""


def upgrade(database: Database, to: str = "head") -> str:
    """What `edge-fleet serve` does first. Many replicas may: one migrates, the others wait and find it done.

    Returns the revision. Raises ConfigurationError for a database of a newer program, or half restored; AwayError.
    """
    with exclusive(database) as connection:
        refuse_unusable(database, connection)
        command.upgrade(_config(connection), to)
        return revision_of(connection)


def downgrade(database: Database, to: str) -> str:
    """Back to an older revision ("base": none), with the loss of what only newer tables keep. Raises as `upgrade`."""
    with exclusive(database) as connection:
        refuse_unusable(database, connection)
        command.downgrade(_config(connection), to)
        return revision_of(connection)


def revision(database: Database) -> str:
    """Of the tables that are there; "" where there are none. Raises AwayError."""
    with database.read() as connection:
        return revision_of(connection)


def known(database: Database) -> str:
    """The same, where this program knows it. Raises as `upgrade`."""
    with database.read() as connection:
        refuse_unusable(database, connection)
        return revision_of(connection)


def newest() -> str:
    """The revision that this program works with."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def make_tables(connection: Connection) -> None:
    """Bring the tables to the newest revision, within the caller's transaction of `exclusive`."""
    command.upgrade(_config(connection), "head")


def drop_tables(connection: Connection) -> None:
    """Remove all tables and what is in them, within the caller's transaction of `exclusive`."""
    command.downgrade(_config(connection), "base")


@contextmanager
def exclusive(database: Database) -> Iterator[Connection]:
    """Begin a write that no program that migrates or starts gets past, however long it takes. Raises AwayError."""
    with database.write() as connection:
        wait_ms = int(database.settings.migration_wait_s * 1000)
        if connection.dialect.name == "postgresql":
            limits = {"lock_timeout": wait_ms, "statement_timeout": 0, "idle_in_transaction_session_timeout": 0}
            for name, value in limits.items():
                connection.execute(sa.select(sa.func.set_config(name, str(value), True)))
        alone(connection, _LOCK)
        yield connection


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.attributes["connection"] = connection
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def revision_of(connection: Connection) -> str:
    """Return the revision of the tables that a connection sees, "" where there are none."""
    return MigrationContext.configure(connection).get_current_revision() or ""


def refuse_unusable(database: Database, connection: Connection) -> None:
    """Raise ConfigurationError for a database that this program must not use as it is."""
    marks.refuse(connection, database.place)
    if sa.inspect(connection).has_table(UNFINISHED.name):
        problem = "a restore into it was cut off; make it anew (dropdb, createdb), and restore into it again"
        raise ConfigurationError(problem, file=str(database.place))
    found = revision_of(connection)
    try:
        ScriptDirectory.from_config(_config()).get_revision(found or "base")
    except CommandError:
        problem = f"its tables are of revision {found!r:.40}, newer than this program; install the newer edge-fleet"
        raise ConfigurationError(problem, file=str(database.place)) from None
