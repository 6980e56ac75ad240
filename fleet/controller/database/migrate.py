"""Migration of a database to the tables of this program (Alembic), as one transaction under a lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from fleet.controller.database import marks
from fleet.controller.database.engine import Database, alone
from fleet.controller.database.place import DatabaseLocation
from fleet.controller.database.tables import metadata
from gateway.common.domain.errors import ConfigurationError

MIGRATES_OLDER = "c075de04"
"""Commit of the last program that migrates from every revision before the oldest script here."""
SCRIPTS = Path(__file__).parent / "migrations"
_LOCK = "edge-fleet migrates"
UNFINISHED = sa.Table("unfinished_restore", sa.MetaData())
"""Table without columns that exists from the begin of a restore into a server to the leap of versions.

A controller that started before the leap would issue versions again.
"""


def upgrade(database: Database) -> str:
    """Create the tables, or migrate them to the newest revision. Return that.

    `edge-fleet serve` does it first. Of many replicas one migrates; the others wait and find it done. Raise
    ConfigurationError for a database of a newer or a much older program, or one that is half restored; AwayError.
    """
    with exclusive(database) as connection:
        refuse_unusable(database, connection)
        make_tables(connection)
        return revision_of(connection)


def revision(database: Database) -> str:
    """Return the revision of the tables, or "" if there are none. Raise AwayError."""
    with database.read() as connection:
        return revision_of(connection)


def known(database: Database) -> str:
    """Return the revision of the tables if this program can use them. Raise what `upgrade` raises."""
    with database.read() as connection:
        refuse_unusable(database, connection)
        return revision_of(connection)


def newest() -> str:
    """Return the revision that this program works with."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


def make_tables(connection: Connection) -> None:
    """Bring the tables to the newest revision, within the caller's transaction of `exclusive`.

    An empty database gets what `tables.py` describes; migrations only change tables that are there.
    """
    if revision_of(connection):
        command.upgrade(_config(connection), "head")
    else:
        metadata.create_all(connection, checkfirst=False)
        command.stamp(_config(connection), "head")


def drop_tables(connection: Connection) -> None:
    """Remove all tables and what is in them, within the caller's transaction of `exclusive`."""
    metadata.drop_all(connection)
    command.stamp(_config(connection), "base")


@contextmanager
def exclusive(database: Database) -> Iterator[Connection]:
    """Begin a write that blocks every program that migrates or starts, however long it takes. Raise AwayError."""
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
        problem = "a restore into it was interrupted; create it again (dropdb, createdb), and repeat the restore"
        raise ConfigurationError(problem, file=str(database.place))
    refuse_revision(database.place, connection)


def refuse_revision(place: DatabaseLocation, connection: Connection) -> None:
    """Raise ConfigurationError for tables of a revision that this program does not know."""
    found, scripts = revision_of(connection), ScriptDirectory.from_config(_config())
    if found in {"", *(script.revision for script in scripts.walk_revisions())}:
        return
    problem = f"its tables are of revision {found!r:.40}, newer than this program; install the newer edge-fleet"
    if found < str(scripts.get_base()):
        problem = f"its tables are of revision {found!r:.40}, older than what this program migrates"
        problem += f"; first migrate or restore it with the edge-fleet of commit {MIGRATES_OLDER}, then start this one"
    raise ConfigurationError(problem, file=str(place))
