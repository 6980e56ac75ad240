"""A whole fleet against `edge-fleet serve`: some of its devices lie, replay, flood, fail or fall silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulators.memory import memory_path
from tests.simulators.played_fleet import QUICK, playing
from tests.simulators.rolled_fleet import SLOT, document
from tests.simulators.served_fleet import roll_out, served_fleet, wait_until

__all__ = ["memory_path"]
SHARES = {"lying": 1.0, "replaying": 1.0, "flooding": 0.5, "failing": 2.0, "silent": 1.0}
CLOCK = "fleet.cli.serve: problem found: clock:"
"""A warning that depends on the machine."""
SPEC = document(
    waves=[{"percent": 25}, {"percent": 100}],
    success={"min_sample": 10, "min_percent": 80},
    abort={"min_sample": 20, "max_failed_percent": 90},
    silence_s=600,
)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_hundred_devices_some_of_them_hostile_are_rolled_out_to(memory_path: Path) -> None:
    with served_fleet(memory_path / "fleet", tables=QUICK) as fleet:
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        with playing(fleet, memory_path, 200, SHARES, "--seconds", "90", "--keep-alive") as played:
            rollout = roll_out(played.operator, SPEC)
            found = played.ended(90)
            assert (found["settled"], found["distrusted"]) == (True, 0), found
            assert set(found["answers"]["telemetry"]) <= {"200", "503"}  # 503: a flood beyond its bounds
            assert found["states"] == {"committed": 194, "rolled_back": 4, "silent": 2}
            ends = {"committed": 192, "failed": 2, "rolled_back": 4, "offered": 2}  # silent devices are not known yet
            wait_until(lambda: played.states(rollout) == ends, 30)
            assert [wave["devices"] for wave in played.rollout(rollout)["waves"]] == [50, 150]
            played.check_rollout(rollout, 200)
            assert played.check_rows(found) == 0
            assert played.count("events WHERE kind = 'rollback'") == 4
        assert fleet.replicas[0].end() == 0
        assert [line for line in fleet.replicas[0].said().splitlines() if CLOCK not in line] == []


@pytest.mark.timeout(150)
def test_a_release_that_fails_on_many_devices_halts(memory_path: Path) -> None:
    with served_fleet(memory_path / "fleet", tables=QUICK) as fleet:
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        words = ("--operator", str(memory_path / "operator"), "--seconds", "90")
        with playing(fleet, memory_path, 40, {"failing": 50.0}, *words) as played:
            abort = {"min_sample": 5, "max_failed_percent": 5}
            waves = [{"percent": 50}, {"percent": 100}]
            rollout = roll_out(played.operator, SPEC | {"abort": abort, "waves": waves, "query": "tag = simulated"})
            wait_until(lambda: played.rollout(rollout)["state"] == "paused", 60)
            seen = played.rollout(rollout)
            assert (seen["halted"], seen["wave"]) == (True, 1)
            assert seen["waiting"] >= 20  # the second half, and whose offer was withdrawn
            assert seen["evidence"]["failed"] >= 2  # of five, one alone says nothing for sure
