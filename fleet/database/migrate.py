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
    with _migrating(database) as (connection, config):
        _refuse_unusable(database, connection, config)
        command.upgrade(config, to)
        return _revision(connection)


def downgrade(database: Database, to: str) -> str:
    """Back to an older revision ("base": none), with the loss of what only newer tables keep. Raises as `upgrade`."""
    with _migrating(database) as (connection, config):
        _refuse_unusable(database, connection, config)
        command.downgrade(config, to)
        return _revision(connection)


def revision(database: Database) -> str:
    """Of the tables that are there; "" where there are none. Raises AwayError."""
    with database.read() as connection:
        return _revision(connection)


def known(database: Database) -> str:
    """The same, where this program knows it. Raises as `upgrade`."""
    with database.read() as connection:
        _refuse_unusable(database, connection, _config())
        return _revision(connection)


def newest() -> str:
    """The revision that this program works with."""
    return ScriptDirectory.from_config(_config()).get_current_head() or ""


@contextmanager
def _migrating(database: Database) -> Iterator[tuple[Connection, Config]]:
    with database.write() as connection:
        wait_ms = int(database.settings.migration_wait_s * 1000)
        if connection.dialect.name == "postgresql":
            for name, value in (("lock_timeout", wait_ms), ("statement_timeout", 0)):
                connection.execute(sa.select(sa.func.set_config(name, str(value), True)))
        alone(connection, _LOCK)
        config = _config()
        config.attributes["connection"] = connection
        yield connection, config


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def _revision(connection: Connection) -> str:
    return MigrationContext.configure(connection).get_current_revision() or ""


def _refuse_unusable(database: Database, connection: Connection, config: Config) -> None:
    if sa.inspect(connection).has_table(UNFINISHED.name):
        problem = "a restore into it was cut off; make it anew (dropdb, createdb), and restore into it again"
        raise ConfigurationError(problem, file=str(database.place))
    found = _revision(connection)
    try:
        ScriptDirectory.from_config(config).get_revision(found or "base")
    except CommandError:
        problem = f"its tables are of revision {found!r:.40}, newer than this program; install the newer edge-fleet"
        raise ConfigurationError(problem, file=str(database.place)) from None
