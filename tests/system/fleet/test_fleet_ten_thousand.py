"""Ten thousand devices, some of them hostile, on SQLite; and on PostgreSQL with two replicas of which the leader dies.

Figures are printed (`pytest -s`), none is judged.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.controller.database import leader
from tests.simulators.played_fleet import Played, playing
from tests.simulators.postgres import own_cluster
from tests.simulators.rolled_fleet import SLOT, document
from tests.simulators.served_fleet import ServedFleet, roll_out, served_fleet, wait_until

DEVICES = 10_000
SHARES = {"lying": 1.0, "replaying": 0.5, "flooding": 0.05, "failing": 1.0, "silent": 0.5}
ENDS = {"committed": 9_750, "failed": 100, "rolled_back": 100, "offered": 50}
"""The end of silent devices is unknown yet: waves take as long as the machine needs, and no other may seem silent."""
WAVES = [1_000, 9_000]
TABLES = {"director": {"poll_s": 240.0, "published_every_s": 1.0}}
LIMIT_S = 5_400.0
SPEC = document(
    success={"min_sample": 100, "min_percent": 90},
    abort={"min_sample": 100, "max_failed_percent": 20},
    silence_s=86_400,
)


@pytest.mark.long
@pytest.mark.timeout(2 * LIMIT_S)
def test_ten_thousand_devices_on_sqlite(tmp_path: Path) -> None:
    with served_fleet(tmp_path / "fleet", tables=TABLES) as fleet:
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        began = time.monotonic()
        with playing(fleet, tmp_path, DEVICES, SHARES, "--seconds", str(LIMIT_S), limit_s=LIMIT_S) as played:
            print(f"\nenrolled in {time.monotonic() - began:.0f} s")
            rollout = roll_out(played.operator, SPEC)
            found = played.ended(LIMIT_S)
            assert check_end(played, rollout, found) == 0
            assert set(found["problems"]) <= {"telemetry: ConnectionResetError"}


@pytest.mark.long
@pytest.mark.timeout(2 * LIMIT_S)
def test_ten_thousand_devices_on_postgresql_while_the_leader_dies(tmp_path: Path) -> None:
    with (
        own_cluster() as server,
        served_fleet(tmp_path / "fleet", database=server.url("postgres"), replicas=2, tables=TABLES) as fleet,
    ):
        fleet.repository.add_release(SLOT, "2")
        first, second = fleet.replicas
        first.start()
        wait_until(lambda: holder(fleet), 30)
        second.start()
        began = time.monotonic()
        with playing(fleet, tmp_path, DEVICES, SHARES, "--seconds", str(LIMIT_S), limit_s=LIMIT_S) as played:
            print(f"\nenrolled in {time.monotonic() - began:.0f} s")
            rollout, leading = roll_out(played.operator, SPEC), holder(fleet)
            wait_until(lambda: played.states(rollout)["committed"] > DEVICES // 20, LIMIT_S)
            first.end(signal.SIGKILL)
            played.operator = fleet.operator(1)
            wait_until(lambda: holder(fleet) != leading, 60)
            wait_until(lambda: played.states(rollout)["committed"] > 3 * DEVICES // 10, LIMIT_S)
            first.start()
            found = played.ended(LIMIT_S)
            assert found["problems"]
            print(f"{check_end(played, rollout, found)} rows are stored whose acknowledgement no device heard")


def check_end(played: Played, rollout: str, found: Mapping[str, Any]) -> int:
    """Check that all devices are in their final states, were told once, all rows are there, and the audit log is whole.

    Return how many rows are stored whose acknowledgement was lost with a killed process, and not sent again.
    """
    print(json.dumps(found, indent=1))
    assert (found["settled"], found["distrusted"]) == (True, 0), found
    wait_until(lambda: played.states(rollout) == ENDS, 300)
    assert [wave["devices"] for wave in played.rollout(rollout)["waves"]] == WAVES
    played.check_rollout(rollout, DEVICES)
    assert played.count("events WHERE kind = 'rollback'") == ENDS["rolled_back"]
    return played.check_rows(found)


def holder(fleet: ServedFleet) -> str:
    """Return the replica that decides."""
    with fleet.database.read() as connection:
        return leader.holder(connection)
