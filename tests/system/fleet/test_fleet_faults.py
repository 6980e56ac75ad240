"""Devices over HTTP while something breaks: the database is gone, the controller is killed, devices fall silent.

Each is offered the release once, and what became of it is told exactly; no row that was acknowledged is missing, none
is there twice.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import DirectorSettings, SchedulerSettings
from fleet.controller.database.settings import DatabaseSettings
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.memory import memory_path
from tests.simulators.played_fleet import POLL_S, QUICK, TURN_S, Asked, Played, playing, simulating
from tests.simulators.postgres import Cluster, own_cluster
from tests.simulators.rolled_fleet import SLOT, document
from tests.simulators.served_fleet import roll_out, served_fleet, wait_until

__all__ = ["memory_path"]
SHARES = {"lying": 2.5, "replaying": 5.0, "flooding": 2.5, "failing": 5.0, "silent": 2.5}
FEW = {"committed": 36, "failed": 1, "rolled_back": 2, "offered": 1}
MANY = {"committed": 180, "failed": 5, "rolled_back": 10, "offered": 5}
"""Ends of 40 and 200 devices. The end of silent devices is unknown before `silence_s`."""
SPEC = document(
    waves=[{"percent": 25}, {"percent": 100}],
    success={"min_sample": 5, "min_percent": 50},
    abort={"min_sample": 20, "max_failed_percent": 90},
)
LEASE_S = 3.0
TABLES = QUICK | {"database": {"lease_s": LEASE_S, "retry_after_s": 2.0}}
SILENCE_S = 60.0
LIMIT_S = 400.0
"""Longest wait for what happens in seconds where the machine is idle."""


def check_end(played: Played, rollout: str, found: dict[str, Any], ends: Mapping[str, int]) -> int:
    """Check that all devices are in their final states, all is recorded once, and no row is missing.

    Return how many rows were stored whose acknowledgement was lost.
    """
    devices = sum(ends.values())
    assert found["distrusted"] == 0, found
    wait_until(lambda: played.states(rollout) == ends, LIMIT_S)
    assert [wave["devices"] for wave in played.rollout(rollout)["waves"]] == [devices // 4, devices - devices // 4]
    played.check_rollout(rollout, devices)
    assert played.count("events WHERE kind = 'rollback'") == ends["rolled_back"]
    return played.check_rows(found)


def fallen_silent(ends: Mapping[str, int]) -> dict[str, int]:
    """Return the same ends after `silence_s`."""
    return {"silent" if state == "offered" else state: count for state, count in ends.items()}


# ---- the database is gone -------------------------------------------------------------------------------------------
@contextmanager
def halted(server: Cluster) -> Iterator[None]:
    """Halt a server like a machine that dies, and start it again at the end."""
    server.halt()
    yield
    server.start()


Away = Callable[[Cluster], AbstractContextManager[None]]


def away_in_a_wave(folder: Path, ends: Mapping[str, int], away: Away, seconds: float, **spec: Any) -> None:
    """Take the database away in a wave; devices and scheduler go on asking."""
    with (
        own_cluster() as server,
        served_fleet(folder / "fleet", database=server.url("postgres"), tables=TABLES) as fleet,
    ):
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        with playing(fleet, folder, sum(ends.values()), SHARES, "--seconds", str(LIMIT_S + seconds)) as played:
            rollout = roll_out(played.operator, SPEC | spec)
            wait_until(lambda: played.states(rollout)["committed"] > ends["committed"] // 3, LIMIT_S)
            with away(server):
                time.sleep(seconds)
                assert played.process.poll() is None, "it was over before"
            fleet.database.close()  # what this process knew of it
            found = played.ended(LIMIT_S)
            assert found["settled"], found
            late = check_end(played, rollout, found, ends)
            assert "503" in found["answers"]["assignment"] or found["problems"]
            print(f"\nPostgreSQL away for {seconds:g} s: {found['answers']}, {found['problems']}, {late} rows unheard")
        assert fleet.replicas[0].end() == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_postgresql_is_gone_in_a_wave(memory_path: Path) -> None:
    away_in_a_wave(memory_path, FEW, halted, 5.0)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_postgresql_hangs_for_a_minute_in_a_wave(tmp_path: Path) -> None:
    away_in_a_wave(tmp_path, MANY, Cluster.hung, 60.0)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_postgresql_is_gone_for_longer_than_devices_may_be_silent(tmp_path: Path) -> None:
    """A device has failed only if it says nothing afterwards, too."""
    away_in_a_wave(tmp_path, fallen_silent(MANY), halted, 1.2 * SILENCE_S, silence_s=SILENCE_S)


# ---- the controller is killed ---------------------------------------------------------------------------------------
def killed_in_waves(folder: Path, ends: Mapping[str, int], kills: int, seed: int) -> None:
    """Kill the controller while the devices commit, at moments drawn from the seed."""
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(1, ends["committed"]), kills))
    with served_fleet(folder / "fleet", tables=TABLES) as fleet:
        fleet.repository.add_release(SLOT, "2")
        replica = fleet.replicas[0]
        replica.start()
        with playing(
            fleet, folder, sum(ends.values()), SHARES, "--seconds", str(LIMIT_S + 10 * kills), "--keep-alive"
        ) as played:
            rollout = roll_out(played.operator, SPEC)
            for committed in moments:
                wait_until(lambda wanted=committed: played.states(rollout)["committed"] >= wanted, LIMIT_S, 0.02)
                time.sleep(chance.uniform(0.0, 0.3))
                replica.end(signal.SIGKILL)
                replica.start()
            found = played.ended(LIMIT_S)
            assert found["settled"], found
            late = check_end(played, rollout, found, ends)
            print(f"\nkilled {kills} times at {moments}: {found['problems']}, {late} rows unheard")
        assert replica.end() == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_controller_is_killed_twice_in_waves(memory_path: Path) -> None:
    killed_in_waves(memory_path, FEW, 2, 6)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3])
def test_the_controller_is_killed_again_and_again_in_waves(tmp_path: Path, seed: int) -> None:
    killed_in_waves(tmp_path, MANY, 12, seed)


# ---- the clock is wrong for a while ----------------------------------------------------------------------------------
@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("days", [1, -1, -366])
def test_the_clock_of_the_controller_is_wrong_for_a_while_in_a_wave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    """Nothing is lost, no device counts as silent, and the rollout ends as if the clock had been right."""
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1")  # of the packages that make test installs
    offset = tmp_path / "offset"
    offset.write_text("+0")
    clock = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": offset, "FAKETIME_NO_CACHE": 1}
    with served_fleet(tmp_path / "fleet", tables=TABLES) as fleet:
        fleet.repository.add_release(SLOT, "2")
        with monkeypatch.context() as environment:
            for name, value in {**clock, "FAKETIME_DONT_FAKE_MONOTONIC": 1}.items():
                environment.setenv(name, str(value))
            fleet.replicas[0].start()
        with playing(fleet, tmp_path, sum(FEW.values()), SHARES, "--seconds", str(LIMIT_S), limit_s=200) as played:
            rollout = roll_out(played.operator, SPEC)
            wait_until(lambda: played.states(rollout)["committed"] > FEW["committed"] // 4, 200)
            offset.write_text(f"{days:+}d")
            if days > 0:
                wait_until(lambda: played.operator.get("/v1/rollouts").status_code == 401, 60)  # its token has expired
            time.sleep(10 * TURN_S)
            offset.write_text("+0")
            wait_until(lambda: played.operator.get("/v1/rollouts").is_success, 60)
            found = played.ended(LIMIT_S)
            assert found["settled"], found
            assert "turned away" not in found["states"], found
            if days < 0:
                found["distrusted"] = 0  # what was signed then has expired for devices, which refuse it and ask again
            late = check_end(played, rollout, found, FEW)
            print(f"\nthe clock was wrong by {days} days: {found['answers']}, {found['problems']}, {late} rows unheard")
        assert fleet.replicas[0].end() == 0


# ---- devices fall silent --------------------------------------------------------------------------------------------
CLOCK_STEP_S, STEP_S = 1.0, 0.1
"""The clock goes ten times as fast, evenly: a jump would be taken for time in which rollouts were not evaluated."""


@contextmanager
def clocked(folder: Path) -> Iterator[RunningController]:
    """Yield a controller whose clock this test moves, so that it need not wait for a silence."""
    repository = FleetRepository(folder)
    repository.add_owner("acme")
    repository.add_release(SLOT, "2")
    config = FleetConfig(
        director=DirectorSettings(poll_s=POLL_S),
        scheduler=SchedulerSettings(tick_s=TURN_S),
        database=settings_with(DatabaseSettings(), lease_s=LEASE_S),
    )
    with controlling(folder, config, repository) as controller:
        yield controller


@pytest.mark.timeout(900)
def test_who_is_silent_for_too_long_has_failed_and_the_rollout_ends(memory_path: Path) -> None:
    with clocked(memory_path / "fleet") as controller, controller.client() as operator:
        asked = Asked([controller.url], controller.ca_file, controller.token(), operator, controller.control.database)
        words = ("--operator", str(memory_path / "operator"), "--keep-alive")
        with simulating(asked, memory_path, sum(FEW.values()), SHARES, *words) as played:
            rollout = roll_out(operator, SPEC | {"silence_s": SILENCE_S})
            wait_until(lambda: played.states(rollout) == FEW, LIMIT_S)
            assert played.rollout(rollout)["state"] == "running"
            while played.rollout(rollout)["state"] == "running":
                controller.clock.ahead += timedelta(seconds=CLOCK_STEP_S)
                assert controller.clock.ahead < timedelta(seconds=3 * SILENCE_S)
                time.sleep(STEP_S)
            assert played.rollout(rollout)["state"] == "finished"
            assert check_end(played, rollout, played.stopped(60), fallen_silent(FEW)) == 0
            reasons = {one["reason"] for one in played.devices(rollout) if one["state"] == "silent"}
            assert reasons == {f"nothing was heard of it for {SILENCE_S:g} s"}
