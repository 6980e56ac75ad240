"""Replicas in processes of their own: killed at any statement, racing each other, their database gone.

PostgreSQL is a real server that the test starts; SQLite is held to the same.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from fleet.controller.database import assignments, audit, devices, leader, migrate, rollouts, telemetry
from fleet.controller.database.engine import Database, open_database
from fleet.controller.database.errors import AwayError, FencedError
from fleet.controller.database.place import read_place
from fleet.controller.database.rollouts import StoredRollout
from fleet.controller.database.settings import DatabaseSettings
from tests.contract.fleet.test_fleet_database_devices import token
from tests.simulators import database_deeds
from tests.simulators.constants import settings_with
from tests.simulators.database_racer import SETTINGS as RACERS
from tests.simulators.database_racer import Racer, borrowed
from tests.simulators.databases import KINDS, NOW, enrolled, url
from tests.simulators.postgres import Cluster, own_cluster

ROOT = Path(__file__).parents[3]
ROUNDS = 25
PATIENCE_S = 20.0


@contextmanager
def replicas(kind: str, folder: Path, *names: str) -> Iterator[tuple[Database, list[Racer]]]:
    """Yield a database, and processes that use it."""
    with (
        url(kind, folder) as text,
        closing(open_database(read_place(text, folder), RACERS)) as database,
        borrowed(text, *names) as racers,
    ):
        yield database, racers


def race(racers: list[Racer], line: str) -> list[str]:
    """Send the line to all racers before any answer is read; return the answers."""
    for racer in racers:
        racer.tell(line)
    return [racer.said() for racer in racers]


# ---- kill -9 --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deed", [*database_deeds.DEEDS, database_deeds.MIGRATE])
@pytest.mark.timeout(180)
def test_killed_between_any_two_statements_nothing_is_half_done(kind: str, deed: str, tmp_path: Path) -> None:
    with url(kind, tmp_path, empty=deed == database_deeds.MIGRATE) as text:
        if deed != database_deeds.MIGRATE:
            with closing(open_database(read_place(text, tmp_path))) as database:
                database_deeds.prepare(database)
        command = [sys.executable, "-W", "error", "-m", "tests.simulators.database_deeds", text, deed]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["points"] >= 5
        assert found["as_before"] == found["points"]
        assert found["done"]


# ---- races ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_of_two_who_present_one_token_one_is_let_in(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (database, racers):
        for _ in range(ROUNDS):
            _, text = token(database)
            assert sorted(race(racers, f"redeem {text}")) == ["TokenRefusedError", "won"]


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_who_signed_one_version_one_may_hand_it_out(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (database, racers):
        enrolled(database, "camera-1")
        for version in range(1, ROUNDS):
            said = race(racers, f"put camera-1 {version}")
            assert sorted(said) == ["ConflictError", "won"]
            with database.read() as connection:
                kept = assignments.current(connection, "camera-1")
            assert kept is not None
            assert (kept.version, kept.digest) == (version, ["one", "two"][said.index("won")])


@pytest.mark.parametrize("kind", KINDS)
def test_who_signs_under_the_lock_never_signs_a_version_twice(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (database, racers):
        enrolled(database, "camera-1")
        given = [int(version) for _ in range(ROUNDS) for version in race(racers, "sign camera-1")]
        assert sorted(given) == list(range(1, 2 * ROUNDS + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_facts_of_two_replicas_are_one_record(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (database, racers):
        with database.write() as connection:
            rollouts.create(connection, StoredRollout("r-1", "n", "s", "t", "running", {}, NOW, "anna"))
        for number in range(ROUNDS):
            assert sorted(race(racers, f"record r-1 {number}")) == ["ConflictError", "won"]
        numbers = [int(number) for _ in range(ROUNDS) for number in race(racers, "add r-1")]
        assert sorted(numbers) == list(range(ROUNDS + 1, 3 * ROUNDS + 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_log_of_two_replicas_is_one_chain(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (database, racers):
        numbers = [int(number) for _ in range(ROUNDS) for number in race(racers, "note camera-1")]
        assert sorted(numbers) == list(range(1, 2 * ROUNDS + 1))
        with database.read() as connection:
            assert audit.verify(connection, RACERS) == audit.head(connection)


@pytest.mark.parametrize("kind", KINDS)
def test_telemetry_sent_to_two_replicas_is_stored_once(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (database, racers):
        enrolled(database, "camera-1")
        for boot in range(ROUNDS):
            assert sorted(race(racers, f"send camera-1 {boot}")) == ["0", "3"]
        with database.read() as connection:
            assert {source.rows for source in telemetry.sources(connection, "camera-1")} == {3}


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_who_stand_one_leads(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (_, racers):
        for number in range(1, ROUNDS):
            said = race(racers, "stand 0")
            assert sorted(said) == sorted(["None", str(number)])
            assert racers[said.index(str(number))].ask("resign") == "resigned"


# ---- dead and late leaders ------------------------------------------------------------------------------------------
def stand_until_elected(racer: Racer, fence: int) -> None:
    """Wait until the racer is elected.

    A server needs a moment to see that a peer is gone; SQLite's lease needs the time that is told.
    """
    end, seconds = time.monotonic() + PATIENCE_S, 0.0
    while racer.ask(f"stand {seconds}") != str(fence):
        assert time.monotonic() < end
        seconds += 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_that_is_killed_is_followed_by_another(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (database, (one, two)):
        enrolled(database, "camera-1")
        assert one.ask("stand 0") == "1"
        assert one.ask("decide 1 camera-1") == "won"
        one.process.kill()
        stand_until_elected(two, 2)
        assert two.ask("decide 2 camera-1") == "won"
        with pytest.raises(FencedError), database.write() as connection:
            leader.guard(connection, 1)
        with database.read() as connection:
            assert devices.get(connection, "camera-1").tags == {"two"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_leader_that_hung_and_wakes_up_changes_nothing(kind: str, tmp_path: Path) -> None:
    with replicas(kind, tmp_path, "one", "two") as (database, (one, two)):
        enrolled(database, "camera-1")
        assert one.ask("stand 0") == "1"
        one.process.send_signal(signal.SIGSTOP)
        stand_until_elected(two, 2)
        assert two.ask("decide 2 camera-1") == "won"
        one.process.send_signal(signal.SIGCONT)
        assert one.ask("decide 1 camera-1") == "FencedError"
        assert one.ask("stand 0") in {"None", "3"}, "a leader that is slow to ask again is followed, too"
        with database.read() as connection:
            assert devices.get(connection, "camera-1").tags == {"two"}


# ---- the server is gone ---------------------------------------------------------------------------------------------
@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Yield a server of this test's own, that may be halted."""
    with own_cluster() as own:
        yield own


@pytest.mark.timeout(120)
def test_a_server_that_went_away_and_came_back(cluster: Cluster, tmp_path: Path) -> None:
    settings = settings_with(DatabaseSettings(), retry_after_s=3.0)
    with closing(open_database(read_place(cluster.url("postgres"), tmp_path), settings)) as database:
        migrate.upgrade(database)
        enrolled(database, "camera-1")
        candidate = leader.candidate(database, "one")
        assert candidate.stand(NOW) == 1
        with database.write() as connection:
            devices.label(connection, "camera-1", ["kept"], "")
        cluster.halt()
        for _ in range(3):
            with pytest.raises(AwayError, match="cannot be used now") as away:
                enrolled(database, "camera-2")
            assert away.value.retry_after_s == 3.0
        with pytest.raises(AwayError):
            candidate.stand(NOW)
        cluster.start()
        enrolled(database, "camera-3")
        with database.read() as connection:
            assert [device.id for device in devices.page(connection, devices.DeviceSelection(), settings)] == [
                "camera-1",
                "camera-3",
            ]
            assert devices.get(connection, "camera-1").tags == {"kept"}
        assert candidate.stand(NOW) == 2
        candidate.resign()


@pytest.mark.timeout(120)
def test_a_transaction_that_a_server_dies_in_is_undone_and_said_so(cluster: Cluster, tmp_path: Path) -> None:
    with closing(open_database(read_place(cluster.url("postgres"), tmp_path))) as database:
        migrate.upgrade(database)

        def interrupted() -> None:
            with database.write() as connection:
                devices.enrol(connection, "camera-1", NOW)
                cluster.halt()

        with pytest.raises(AwayError):
            interrupted()
        cluster.start()
        with database.read() as connection:
            assert devices.page(connection, devices.DeviceSelection(), DatabaseSettings()) == ()
