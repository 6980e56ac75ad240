"""Migrations, transactions and bounds of the database itself, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from fleet.controller.database import devices, migrate
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.errors import AwayError, ConflictError
from fleet.controller.database.place import read_place
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import metadata
from gateway.common.domain.errors import ConfigurationError, Fault
from tests.simulators.constants import settings_with
from tests.simulators.databases import KINDS, NOW, content, database, enrolled, made, shape, url

__all__ = ["database"]
HOUR = timedelta(hours=1)
SCHEMAS = Path(__file__).parent
DEFINITIONS = {
    "sqlite": ("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'", "SELECT name, wr FROM pragma_table_list"),
    "postgresql": (
        "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
        "SELECT sequencename, data_type::text, start_value, cycle FROM pg_sequences",
    ),
}
"""What SQLAlchemy's inspector leaves out."""


def test_tables_and_migrations_agree(database: Database) -> None:
    with database.write() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    with database.read() as connection:
        there = sa.inspect(connection)
        for table in metadata.sorted_tables:
            found = {column["name"]: column["nullable"] for column in there.get_columns(table.name)}
            assert found == {column.name: column.nullable for column in table.columns}
            keys = there.get_pk_constraint(table.name)["constrained_columns"]
            assert keys == [column.name for column in table.primary_key]
            checks = {check["name"] for check in there.get_check_constraints(table.name)}
            assert checks == {str(c.name) for c in table.constraints if isinstance(c, sa.CheckConstraint)}


def as_made_by_migrations(opened: Database) -> None:
    """Create the schema as the migrations 0001 to 0016 made it, before `tables.py` did: dumped from both databases."""
    text = (SCHEMAS / f"fleet_schema_0016_{opened.place.url.get_backend_name()}.sql").read_text()
    with opened.write() as connection:
        for statement in text.splitlines():
            connection.exec_driver_sql(statement.replace("%", "%%") if opened.place.file is None else statement)
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES ('0016')")


def schema(opened: Database) -> set[str]:
    """Return every column, constraint, index, trigger and function with its definition, as the database gives it."""
    with opened.read() as connection:
        there = sa.inspect(connection)
        found: list[object] = []
        for table in there.get_table_names():
            found += [(table, "column", {**column, "type": str(column["type"])}) for column in there.get_columns(table)]
            found += [(table, "key", there.get_pk_constraint(table))]
            for kind in ("foreign_keys", "unique_constraints", "check_constraints", "indexes"):
                found += [(table, kind, one) for one in getattr(there, f"get_{kind}")(table)]
        for statement in DEFINITIONS[connection.dialect.name]:
            found += [tuple(row) for row in connection.exec_driver_sql(statement)]
        return {str(one) for one in found}


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_database_gets_what_the_migrations_made(kind: str, tmp_path: Path) -> None:
    with made(kind, tmp_path, empty=True) as migrated, made(kind, tmp_path, empty=True) as new:
        assert migrate.revision(new) == ""
        as_made_by_migrations(migrated)
        before = shape(migrated)
        assert migrate.upgrade(new) == migrate.upgrade(migrated) == migrate.newest() == migrate.upgrade(new)
        assert schema(migrated) == schema(new)
        if migrate.newest() == "0016":
            assert shape(migrated) == before


def test_all_tables_go_and_come_again(database: Database) -> None:
    before = shape(database)
    with migrate.exclusive(database) as connection:
        migrate.drop_tables(connection)
    assert {name for name in shape(database) if "alembic_version" not in name} == set()
    assert migrate.upgrade(database) == migrate.newest()
    assert shape(database) == before


def test_tables_of_an_old_program_are_left_alone(database: Database) -> None:
    enrolled(database, "camera-1")
    before = content(database)
    with database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '0015'"))
    for use in (migrate.upgrade, migrate.known):
        with pytest.raises(
            ConfigurationError, match=rf"'0015', older .* edge-fleet of commit {migrate.MIGRATES_OLDER}"
        ):
            use(database)
    assert (migrate.revision(database), content(database)) == ("0015", before)


def test_tables_of_a_newer_program_are_left_alone(database: Database) -> None:
    with database.write() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigurationError, match="'9999', newer than this program"):
        migrate.upgrade(database)
    with pytest.raises(ConfigurationError, match="install the newer edge-fleet"):
        migrate.known(database)
    assert migrate.revision(database) == "9999"


@pytest.mark.parametrize("kind", KINDS)
def test_replicas_that_start_together_migrate_once(kind: str, tmp_path: Path) -> None:
    with url(kind, tmp_path, empty=True) as text:
        ready = threading.Barrier(4)

        def start(_number: int) -> str:
            with closing(open_database(read_place(text, tmp_path))) as opened:
                ready.wait()
                return migrate.upgrade(opened)

        with ThreadPoolExecutor(4) as threads:
            assert set(threads.map(start, range(4))) == {migrate.newest()}


def test_a_new_file_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    """SQLite refuses, without waiting, a second one that makes the file a write-ahead one at the same moment."""
    ready = threading.Barrier(8)

    def look(number: int) -> None:
        with closing(open_database(read_place(f"sqlite:///{tmp_path}/{number // 8}.sqlite", tmp_path))) as opened:
            ready.wait()
            with opened.glance() as connection:
                connection.execute(sa.text("SELECT 1"))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(look, range(20 * 8)))


def test_a_migration_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for kind in KINDS:
        with made(kind, tmp_path, empty=True) as opened:
            with opened.write() as connection:
                connection.execute(sa.text("CREATE TABLE telemetry (x INTEGER)"))
            before = shape(opened)
            with pytest.raises(AwayError, match="already exists"):
                migrate.upgrade(opened)
            assert shape(opened) == before


def test_a_read_sees_one_moment(database: Database) -> None:
    enrolled(database, "camera-1")
    with database.read() as connection:
        before = devices.get(connection, "camera-1")
        with database.write() as other:
            devices.label(other, "camera-1", ["new"], "")
        assert devices.get(connection, "camera-1") == before
    with database.read() as connection:
        assert devices.get(connection, "camera-1").tags == {"new"}


def test_a_glance_sees_what_is_there_now(database: Database) -> None:
    for number in range(1, 4):
        enrolled(database, f"camera-{number}")
        with database.glance() as connection:
            assert devices.counts(connection, devices.DeviceSelection())[devices.EnrolmentState.ENROLLED] == number
    assert database.glances.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_a_read_changes_nothing(database: Database) -> None:
    enrolled(database, "camera-1")
    with pytest.raises(AwayError, match="read"), database.read() as connection:
        devices.label(connection, "camera-1", ["new"], "")


def test_what_was_begun_is_undone_where_the_body_raises(database: Database) -> None:
    def fail() -> None:
        with database.write() as connection:
            devices.enrol(connection, "camera-1", NOW)
            raise KeyError("something else went wrong")

    before = content(database)
    with pytest.raises(KeyError):
        fail()
    assert content(database) == before


def test_writers_wait_for_each_other(database: Database) -> None:
    enrolled(database, "camera-1")

    def add(number: int) -> None:
        with database.write() as connection:
            devices.enrol(connection, f"device-{number}", NOW)

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(add, range(100)))
    with database.read() as connection:
        assert devices.counts(connection, devices.DeviceSelection())[devices.EnrolmentState.ENROLLED] == 101


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_too_long_is_told_to_come_back(kind: str, tmp_path: Path) -> None:
    settings = settings_with(DatabaseSettings(), connections=1, connection_wait_s=0.05, retry_after_s=7.0)
    with made(kind, tmp_path, settings) as opened, opened.write() as connection:
        with pytest.raises(AwayError, match=r"in use for 0\.05 s") as away, opened.write():
            pass
        assert (away.value.fault, away.value.retry_after_s) == (Fault.UNAVAILABLE, 7.0)
        devices.enrol(connection, "camera-1", NOW)


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_that_another_process_holds_is_not_waited_for_without_end(kind: str, tmp_path: Path) -> None:
    settings = settings_with(DatabaseSettings(), busy_timeout_ms=50)
    with url(kind, tmp_path) as text:
        place = read_place(text, tmp_path)
        with closing(open_database(place, settings)) as one, closing(open_database(place, settings)) as two:
            enrolled(one, "camera-1")
            with one.write() as connection:
                devices.label(connection, "camera-1", ["mine"], "")
                with pytest.raises(AwayError, match="lock"), two.write() as other:
                    devices.label(other, "camera-1", ["theirs"], "")


def test_errors_show_no_values(database: Database) -> None:
    enrolled(database, "camera-1")
    secret = "token-digest-0123"
    statement = "INSERT INTO numbers (name, value) VALUES (:name, 1)"
    with database.write() as connection:
        connection.execute(sa.text(statement), {"name": secret})
    with pytest.raises(ConflictError) as refused, database.write() as connection:
        connection.execute(sa.text(statement), {"name": secret})
    assert secret not in str(refused.value)


def test_the_file_is_private_and_its_log_too(tmp_path: Path) -> None:
    with closing(open_database(read_place("", tmp_path / "new" / "folder"))) as opened:
        migrate.upgrade(opened)
        files = list((tmp_path / "new" / "folder").iterdir())
        assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
        assert len(files) >= 2
        for connect, value in ((opened.read, 1), (opened.write, 0)):
            with connect() as connection:
                pragmas = ("journal_mode", "synchronous", "foreign_keys", "query_only")
                found = [connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() for pragma in pragmas]
            assert found == ["wal", 2, 1, value]


def test_a_full_disk_is_said_so_and_leaves_what_was_there(tmp_path: Path) -> None:
    with made("sqlite", tmp_path) as opened:
        enrolled(opened, "camera-1")
        before = content(opened)
        with opened.write() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        big = {"profile": "lab", "accelerators": [], "inventory": {"x": "y" * 200_000}}
        with pytest.raises(AwayError, match="disk is full"), opened.write() as connection:
            devices.describe(connection, "camera-1", **big)
        assert content(opened) == before
        with opened.write() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 100000")
            devices.describe(connection, "camera-1", **big)
