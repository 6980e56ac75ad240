"""The move of a fleet to another database: every row, both directions, killed on its way, refused on wrong input."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from fleet.cli.parser import main
from fleet.controller.app import Controller, Origin
from fleet.controller.audit import Break, Deed, Head
from fleet.controller.config import FleetConfig
from fleet.controller.database import assignments, audit, devices, marks, migrate, move
from fleet.controller.database.copying import CHUNK_BYTES, CHUNK_ROWS, chunk_rows
from fleet.controller.database.engine import Database, open_alone, open_database
from fleet.controller.database.errors import AwayError
from fleet.controller.database.marks import Mark
from fleet.controller.database.move import Contents
from fleet.controller.database.place import DatabaseLocation, read_place
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import metadata
from gateway.common.domain.errors import ConfigurationError, UnreachableError
from tests.simulators.asking import want
from tests.simulators.constants import settings_with
from tests.simulators.controller import controlling, free_port
from tests.simulators.databases import ALIKE, KINDS, NOW, content, copied, made, shape, url
from tests.simulators.dying import die_at, died
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.full_fleet import empty_tables, full_fleet
from tests.simulators.postgres import shared_cluster
from tests.simulators.rolled_fleet import SLOT, RolledFleet
from tests.simulators.served_fleet import served_fleet

SETTINGS = settings_with(DatabaseSettings(), busy_timeout_ms=5_000, migration_wait_s=5.0, restore_leap=1000)
WAYS = [("sqlite", "postgresql"), ("postgresql", "sqlite")]
COUNTED = ("enrolment_tokens", "telemetry_sources", "events", "diagnostics", "api_tokens")
PATH = "/v1/self/assignment"
TABLES = len(metadata.tables)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> FleetRepository:
    made_once = FleetRepository(tmp_path_factory.mktemp("repository") / "publisher")
    for version in ("1", "2"):
        made_once.add_release(SLOT, version)
    return made_once


@contextmanager
def places(way: tuple[str, str], folder: Path) -> Iterator[tuple[DatabaseLocation, DatabaseLocation]]:
    """Yield the places of a migrated database and of an empty one."""
    with url(way[0], folder) as old, url(way[1], folder, empty=True) as new:
        yield read_place(old, folder), read_place(new, folder)


def moved(old: DatabaseLocation, new: DatabaseLocation) -> Contents:
    with closing(open_alone(old, SETTINGS)) as source, closing(open_alone(new, SETTINGS)) as target:
        return move.move(source, target, NOW, lambda done, total: None)


def content_of(place: DatabaseLocation) -> object:
    with closing(open_database(place, SETTINGS)) as database:
        return content(database)


def starts(place: DatabaseLocation) -> bool:
    """Return whether a controller would start on it and find a fleet."""
    with closing(open_database(place, SETTINGS)) as database:
        try:
            return bool(migrate.known(database))
        except ConfigurationError:
            return False


# ---- every row ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS, ids="-to-".join)
def test_every_row_comes_over_and_the_fleet_goes_on(
    way: tuple[str, str], repository: FleetRepository, tmp_path: Path
) -> None:
    with places(way, tmp_path) as (old, new), made(way[1], tmp_path) as fresh:
        with full_fleet(old, repository) as fleet, fleet.database.write() as connection:
            connection.execute(sa.text("""UPDATE devices SET inventory = '{"b": 1,  "a": 2}'"""))
        assert empty_tables(old) == []
        before = content_of(old)
        found = moved(old, new)
        assert content_of(new) == before
        assert found.total == sum(map(len, before.values()))
        assert found.revision == migrate.newest()
        assert (starts(old), starts(new)) == (False, True)
        with closing(open_database(new, SETTINGS)) as database:
            assert shape(database) == shape(fresh)
            check_goes_on(database, fleet)


def check_goes_on(database: Database, fleet: RolledFleet) -> None:
    """Check that numbers, versions, the log and the rollout continue where they were."""
    with database.write() as connection:
        for name in COUNTED:
            table = metadata.tables[name]
            last = connection.execute(sa.select(table).order_by(table.c.id.desc()).limit(1)).mappings().one()
            another = {key: f"+{last[key][1:]}" for key in ("digest", "key", "stream") if key in last}
            values = {key: value for key, value in last.items() if key != "id"} | another
            added = connection.execute(sa.insert(table).values(values).returning(table.c.id)).scalar_one()
            assert added == last["id"] + 1
        held = assignments.current(connection, "camera-00003")
        assert held
        assert (held.version, held.digest, held.content) == (2_000_003, f"{3:064x}", b"\x00\xffcamera-00003")
        assert assignments.next_version(connection, "camera-00003") == 2_000_004
        sequence = audit.head(connection).sequence
        assert audit.append(connection, Deed("ann", "go on", ""), NOW).sequence == sequence + 1
    going_on = RolledFleet(database, fleet.repository, fleet.rolling.settings)
    going_on.now = fleet.now
    (rollout,) = (row[0] for row in content(database)["rollouts"])
    going_on.report(rollout, going_on.members(rollout, "offered"), "committed")
    for _ in range(3):
        going_on.turn(1)
    assert len(going_on.members(rollout, "offered")) == 9
    assert going_on.replayed(rollout) > 0
    going_on.scheduler.resign()


def test_there_and_back(repository: FleetRepository, tmp_path: Path) -> None:
    with places(("sqlite", "postgresql"), tmp_path) as (first, second), url("sqlite", tmp_path, empty=True) as text:
        third = read_place(text, tmp_path)
        with full_fleet(first, repository):
            pass
        before = content_of(first)
        moved(first, second)
        moved(second, third)
        assert content_of(third) == before
        assert [starts(place) for place in (first, second, third)] == [False, False, True]


def test_a_chunk_is_bounded_in_rows_and_bytes() -> None:
    for table in metadata.sorted_tables:
        longest = sum(getattr(column.type, "limit_bytes", 0) for column in table.columns)
        assert 1 <= chunk_rows(table) <= CHUNK_ROWS
        assert chunk_rows(table) * longest <= CHUNK_BYTES
    assert chunk_rows(metadata.tables["telemetry"]) < CHUNK_ROWS == chunk_rows(metadata.tables["numbers"])


# ---- kill -9 --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS, ids="-to-".join)
@pytest.mark.timeout(300)
def test_killed_at_any_moment_the_same_command_ends_it(
    way: tuple[str, str], originals: dict[str, str], tmp_path: Path
) -> None:
    """Never two databases, and never a half filled one, on which a controller starts."""
    with filled(way, originals, tmp_path) as (old, new):
        leaving, arriving = points(old, new)
    kills = [("old", number) for number in (1, len(leaving) // 2, len(leaving))]
    kills += [("new", number) for number in (1, arriving.index(COMMIT) // 2, arriving.index(COMMIT) + 1)]
    kills += [("new", number) for number in (len(arriving) - 1, len(arriving))]
    found = []
    for which, number in kills:
        with filled(way, originals, tmp_path) as (old, new):
            before = content_of(old)
            assert died(partial(die_moving, old, new, which, number))
            found.append((starts(old), starts(new)))
            moved(old, new)
            assert content_of(new) == before
            assert (starts(old), starts(new)) == (False, True)
            assert moved(old, new).total == sum(map(len, before.values()))
    assert found == [(True, False)] * 6 + [(False, False)] * 2


COMMIT = "commit"


@pytest.fixture(scope="module")
def originals(repository: FleetRepository, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield the URL of a full database of each kind, which tests copy."""
    folder = tmp_path_factory.mktemp("originals")
    with ExitStack() as stack:
        urls = {kind: stack.enter_context(url(kind, folder)) for kind in KINDS}
        for text in urls.values():
            with full_fleet(read_place(text, folder), repository):
                pass
        yield urls


@contextmanager
def filled(
    way: tuple[str, str], originals: dict[str, str], folder: Path
) -> Iterator[tuple[DatabaseLocation, DatabaseLocation]]:
    """Yield the places of a full database and of an empty one."""
    with copied(way[0], originals[way[0]]) as old, url(way[1], folder, empty=True) as new:
        yield read_place(old, folder), read_place(new, folder)


def points(old: DatabaseLocation, new: DatabaseLocation) -> tuple[list[str], list[str]]:
    """Return statements and commits of a move, in each of its databases."""
    passed: tuple[list[str], list[str]] = ([], [])
    with closing(open_alone(old, SETTINGS)) as source, closing(open_alone(new, SETTINGS)) as target:
        for database, names in zip((source, target), passed, strict=True):
            event.listen(database.writes, "before_cursor_execute", lambda *_, names=names: names.append("statement"))
            event.listen(database.writes, "commit", lambda *_, names=names: names.append(COMMIT))
        move.move(source, target, NOW, lambda done, total: None)
    return passed


def die_moving(old: DatabaseLocation, new: DatabaseLocation, which: str, number: int) -> None:
    with closing(open_alone(old, SETTINGS)) as source, closing(open_alone(new, SETTINGS)) as target:
        die_at(source if which == "old" else target, number)
        move.move(source, target, NOW, lambda done, total: None)


# ---- the old database -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("way", WAYS, ids="-to-".join)
def test_the_old_database_says_where_the_fleet_went_and_can_be_taken_back(
    way: tuple[str, str], originals: dict[str, str], tmp_path: Path
) -> None:
    with filled(way, originals, tmp_path) as (old, new):
        moved(old, new)
        with closing(open_database(old, SETTINGS)) as database:
            with pytest.raises(ConfigurationError, match=r"the fleet moved to .*--undo-move") as refused:
                migrate.upgrade(database)
            assert f'url = "{new.setting}"' in str(refused.value)
        with closing(open_alone(old, SETTINGS)) as database:
            base = move.undo(database)
            with pytest.raises(ConfigurationError, match="nothing to undo"):
                move.undo(database)
        assert starts(old)
        with closing(open_database(old, SETTINGS)) as database, database.write() as connection:
            assert assignments.current(connection, "camera-00001") is None
            assert assignments.next_version(connection, "camera-00001") == base + 1 == 2_000_009 + 1000 + 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_move_by_an_old_program_is_taken_back_by_that(kind: str, tmp_path: Path) -> None:
    with url(kind, tmp_path) as text:
        old = read_place(text, tmp_path)
        with closing(open_database(old, SETTINGS)) as database, database.write() as connection:
            connection.execute(sa.text("UPDATE alembic_version SET version_num = '0014'"))
            marks.put(connection, marks.MOVED, Mark("x", "sqlite:///lost.sqlite", NOW))
        with closing(open_alone(old, SETTINGS)) as database:
            with pytest.raises(ConfigurationError, match=f"'0014', older .* of commit {migrate.MIGRATES_OLDER}"):
                move.undo(database)
            with database.read() as connection:
                assert marks.read(connection, marks.MOVED)


def test_a_lost_target_is_not_taken_for_the_fleet(originals: dict[str, str], tmp_path: Path) -> None:
    with filled(("postgresql", "sqlite"), originals, tmp_path) as (old, new):
        moved(old, new)
        assert new.file
        new.file.unlink()
        with pytest.raises(ConfigurationError, match=r"holds no tables, but .*--undo-move"):
            moved(old, new)


# ---- wrong input ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_a_fleet_does_not_move_while_a_controller_works(kind: str, tmp_path: Path) -> None:
    impatient = settings_with(SETTINGS, busy_timeout_ms=100)
    with url(kind, tmp_path) as text, url("sqlite", tmp_path, empty=True) as other:
        old, new = read_place(text, tmp_path), read_place(other, tmp_path)
        with closing(open_database(old, SETTINGS)) as controller:
            with controller.read() as connection:
                connection.execute(sa.text("SELECT 1 FROM devices"))
            with (
                closing(open_alone(old, impatient)) as source,
                closing(open_alone(new, SETTINGS)) as target,
                pytest.raises((AwayError, UnreachableError), match=r"stop .*edge-fleet serve"),
            ):
                move.move(source, target, NOW, lambda done, total: None)
            with controller.write() as connection:
                devices.enrol(connection, "camera-1", NOW)
        assert (starts(old), starts(new)) == (True, False)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_writes_while_a_fleet_moves(kind: str, tmp_path: Path) -> None:
    with places((kind, "sqlite"), tmp_path) as (old, new):
        refused = []

        def write_now(done: int, total: int) -> None:
            with closing(open_database(old, settings_with(SETTINGS, busy_timeout_ms=100))) as other:
                with pytest.raises(AwayError), other.write() as connection:
                    devices.enrol(connection, "late", NOW)
                refused.append(done)

        with closing(open_alone(old, SETTINGS)) as source, closing(open_alone(new, SETTINGS)) as target:
            move.move(source, target, NOW, write_now)
        assert refused
        assert content_of(new) == content_of(old)


def test_wrong_targets_are_refused(
    repository: FleetRepository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "controller"
    folder.mkdir()
    old = read_place("", folder)
    with closing(open_database(old, SETTINGS)) as database:
        migrate.upgrade(database)
    with url("postgresql", tmp_path) as full, url("sqlite", tmp_path) as file:
        for to, code, said in (
            ("mysql://fleet@db/fleet", 2, "--to: 'mysql' with the database 'fleet' is neither; use postgresql://"),
            ("sqlite:///fleet-2.sqlite", 2, "--to: 'sqlite' with the database 'fleet-2.sqlite' is neither"),
            ("postgresql://fleet:secret@db/fleet", 2, "--to: leave the password out"),
            ("postgresql://db/fleet?password=secret", 2, "its options contain a password"),
            (f"sqlite:///{old.file}", 2, "is the database that the fleet uses now"),
            (full, 2, f"holds {TABLES} tables already; name an empty database"),
            (file, 2, f"holds {TABLES} tables already; name an empty database"),
            (f"postgresql://fleet@127.0.0.1:{free_port()}/fleet", 3, "cannot be used now"),
        ):
            assert main(["migrate", "--dir", str(folder), "--to", to]) == code
            out, err = capsys.readouterr()
            assert (out, said in err, "secret" in err, err.count("\n")) == ("", True, False, 1), err
    assert starts(old)


def test_tables_of_another_revision_do_not_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with places(("sqlite", "postgresql"), tmp_path) as (old, new):
        with monkeypatch.context() as later:
            later.setattr(migrate, "newest", lambda: "9999")
            with pytest.raises(ConfigurationError, match=r"tables are of .*, not of 9999; first: edge-fleet migrate"):
                moved(old, new)
        for revision, problem in (("0009", "older than what this program migrates"), ("9999", "newer than this")):
            with closing(open_database(old, SETTINGS)) as database, database.write() as connection:
                connection.execute(sa.text("UPDATE alembic_version SET version_num = :to"), {"to": revision})
            with pytest.raises(ConfigurationError, match=problem):
                moved(old, new)


def test_two_fleets_do_not_move_into_one_database(originals: dict[str, str], tmp_path: Path) -> None:
    with filled(("sqlite", "postgresql"), originals, tmp_path) as (old, new), url("sqlite", tmp_path) as text:
        _, arriving = points(old, new)
        shared_cluster().do(f"DROP DATABASE {new.url.database} WITH (FORCE)")
        shared_cluster().do(f"CREATE DATABASE {new.url.database}")
        with closing(open_alone(old, SETTINGS)) as database:
            move.undo(database)
        assert died(partial(die_moving, old, new, "new", len(arriving)))
        with pytest.raises(ConfigurationError, match=f"holds a move from {old.setting} that did not end"):
            moved(read_place(text, tmp_path), new)
        moved(old, new)
        assert starts(new)


def test_a_copy_that_differs_is_not_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = Contents("0010", {"devices": 2, "audit": 1}, Head(1, "a"))
    assert move.different(before, before) == ""
    after = Contents("0009", {"devices": 1, "audit": 1}, Break(1, "is missing"))
    said = move.different(before, after)
    assert said.startswith("devices: 2 rows, then 1; tables of 0010, then 0009; audit log: ")
    with places(("sqlite", "sqlite"), tmp_path) as (old, new):
        monkeypatch.setattr(move, "different", lambda *_: "devices")
        with pytest.raises(ConfigurationError, match="nothing was moved"):
            moved(old, new)
        assert (starts(old), starts(new)) == (True, False)


@pytest.mark.parametrize("kind", ALIKE)
def test_a_running_controller_is_left_alone(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The programs are processes of their own: SQLite's locks belong to a process, and one close would drop them."""
    folder, quick = tmp_path / "fleet", {"database": {"busy_timeout_ms": 100}}
    with url(kind, tmp_path) as text, served_fleet(folder, database=text, tables=quick) as fleet:
        fleet.database.close()
        fleet.replicas[0].start()
        words = ["migrate", "--dir", str(folder), "--to", f"sqlite:///{tmp_path / 'other.sqlite'}"]
        for refused in (words, [*words[:3], "--undo-move"] if kind == "sqlite" else words):
            assert main(refused) == 3
            assert re.search(r"a controller runs.*stop .*edge-fleet serve", capsys.readouterr().err)
        with fleet.operator() as operator:
            assert operator.post("/v1/tokens", json={"name": "ben", "role": "viewer"}).is_success
        assert fleet.replicas[0].end() == 0
        assert main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["rows"]["api_tokens"] == 2
        assert main(["serve", "--dir", str(folder)]) == 2
        assert "the fleet moved to sqlite:///" in capsys.readouterr().err


# ---- whole controllers ----------------------------------------------------------------------------------------------
def test_a_device_notices_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same certificate, the same document: 304. The next version follows the last one."""
    folder = tmp_path / "controller"
    repository = FleetRepository(folder)
    repository.add_release("meter", "1")
    with controlling(folder, FleetConfig(), repository) as running:
        port, camera = int(running.url.rpartition(":")[2]), running.enrolled("camera")
        with running.device_client(camera) as client:
            before = client.get(PATH)
    with url("postgresql", tmp_path, empty=True) as text:
        assert main(["migrate", "--dir", str(folder), "--to", text, "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert (said["url"], said["rows"]["devices"], said["audit"]["broken"]) == (
            read_place(text, folder).setting,
            1,
            False,
        )
        with pytest.raises(ConfigurationError, match="the fleet moved to postgresql"):
            Controller(Origin(folder, FleetConfig()))
        config = FleetConfig(database=DatabaseSettings(url=text))
        with controlling(folder, config, repository, port=port) as running, running.device_client(camera) as client:
            after = client.get(PATH, headers={"if-none-match": before.headers["etag"]})
            assert (after.status_code, after.headers["etag"]) == (304, before.headers["etag"])
            assert client.get(PATH).content == before.content
            want(running, "camera", "models/acme/meter/1/release")
            changed = client.get(PATH, headers={"if-none-match": before.headers["etag"]})
            assert (changed.status_code, changed.json()["signed"]["version"]) == (200, 2)
