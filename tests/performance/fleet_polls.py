"""Poll interval that this machine carries: `python -m tests.performance.fleet_polls [DEVICES] [SECONDS]`.

`edge-fleet serve` with its defaults and DEVICES (10,000) in its database, of which 128 poll as agents do: a connection
with its handshake, an assignment that is unchanged (304), two rows of telemetry. Printed are the processor time of one
such poll in the controller and in PostgreSQL, which holds where other programs share the machine, and the shortest
interval at which the controller stays below 60 % of a core, or of two with PostgreSQL and two replicas.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil

from fleet.controller.database import certificates, devices
from fleet.controller.database.certificates import Certificate
from tests.load.settings import Settings
from tests.load.simulate import Run, simulate
from tests.load.tally import Tally
from tests.load.wire import Response
from tests.performance.fleet import FREE
from tests.performance.fleet_steps import Crowd, Member, Step, _asked, _told, cpu_s
from tests.performance.servers import calibration, machine
from tests.simulators.postgres import Cluster, own_cluster
from tests.simulators.rolled_fleet import SLOT
from tests.simulators.served_fleet import ServedFleet, served_fleet

MEMBERS, SHARE, PASSES = 128, 0.6, 3
"""Share of a core to plan with, as in fleet/SIZING.md."""
TELL = _told(2)


async def _cycle(member: Member, number: int) -> Response:
    await _asked(member, member.line)
    return await TELL(member, number)


def main() -> None:
    """Print one line for SQLite and one for PostgreSQL."""
    count, seconds = map(int, (*sys.argv[1:], *("10000", "15")[len(sys.argv) - 1 :]))
    print(f"{machine()}; calibration {calibration()}; {count:,} devices")
    for kind in ("SQLite", "PostgreSQL"):
        with ExitStack() as opened:
            folder, server = Path(opened.enter_context(tempfile.TemporaryDirectory())), None
            if kind == "PostgreSQL":
                server = opened.enter_context(own_cluster())
            url = server.url("postgres") if server else ""
            fleet = opened.enter_context(served_fleet(folder / "fleet", database=url, tables=FREE))
            fleet.replicas[0].start()
            _fill(fleet, count)
            asyncio.run(_enrolled(fleet, folder / "kept"))
            own, beside = asyncio.run(_measured(fleet, folder / "kept", seconds, server))
        cores = 2 if server else 1
        interval_s = count * own / 1000.0 / (cores * SHARE)
        print(
            f"{kind}: {own:.1f} ms a poll in the controller, {beside:.1f} ms in the database server; {cores} cores "
            f"for controllers at {SHARE:.0%} carry {count:,} devices that poll every {interval_s:.0f} s"
        )


def _fill(fleet: ServedFleet, count: int) -> None:
    now = datetime.now(UTC)
    with fleet.database.write() as connection:
        for number in range(count - MEMBERS):
            name = f"device-{number:06}"
            devices.enrol(connection, name, now)
            certificates.add(connection, Certificate(f"{number:040x}", name, now, now + timedelta(days=90)))


async def _enrolled(fleet: ServedFleet, kept: Path) -> None:
    """Enrol the devices that poll."""
    fleet.repository.add_release(SLOT, "2")
    settings = Settings(fleet.replicas[0].url, MEMBERS, poll_s=3600.0, quiet=True)
    run = Run(settings, tokens=fleet.tokens(MEMBERS), authority=fleet.ca_file.read_text(), keep=kept)

    def over(tally: Tally) -> None:
        if tally.answers["telemetry", 200] >= MEMBERS:
            task.cancel()

    task = asyncio.create_task(simulate(run, over))
    await task


async def _measured(fleet: ServedFleet, kept: Path, seconds: int, server: Cluster | None) -> tuple[float, float]:
    """Return milliseconds of processor time of one poll: of the controller, of the database server."""
    pid, step = fleet.replicas[0].pid, Step("poll and report", _cycle)
    crowd = await Crowd.gathered(fleet.replicas[0].url, fleet.ca_file.read_text(), kept, pid)
    await crowd.sample(step, 2.0)
    found = []
    for _ in range(PASSES):
        before = cpu_s(pid), _tree_s(server)
        sample = await crowd.sample(step, seconds / PASSES)
        count = sum(sample.answers.values())
        found.append((sample.cpu_ms, 1000.0 * (_tree_s(server) - before[1]) / count))
    crowd.close()
    own, beside = (sorted(one[at] for one in found)[PASSES // 2] for at in (0, 1))
    return own, beside


def _tree_s(server: Cluster | None) -> float:
    """Return the processor time of a database server's processes."""
    if server is None or server._process is None:
        return 0.0
    parent = psutil.Process(server._process.pid)
    return sum(cpu_s(one.pid) for one in (parent, *parent.children(recursive=True)))


if __name__ == "__main__":
    main()
