"""Cost of a controller: `python -m tests.performance.fleet [--devices N] [--passes N] [--postgresql] [--json FILE]`.

`edge-fleet serve` with its defaults is kept to one core, the devices to another; all is real but the models. Devices
enrol; then steps run one after the other, in several passes; then a release is rolled out to all of them. Printed are
the machine with a calibration, and medians, with the lowest and highest pass. Processor time is the controller's own,
of all its threads (with PostgreSQL not that server's); it holds where other programs share the machine, seconds do not.
`fleet/SIZING.md` goes on from it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.load.settings import Settings
from tests.load.simulate import Run, simulate
from tests.load.tally import Tally
from tests.performance.fleet_steps import STEPS, Crowd, Sample, Step, cpu_s
from tests.performance.servers import LOAD_CORE, SERVER_CORE, calibration, machine
from tests.simulators.postgres import own_cluster
from tests.simulators.rolled_fleet import SLOT, document
from tests.simulators.served_fleet import ServedFleet, answered, roll_out, served_fleet, wait_until

SPEC = document(abort={"min_sample": 20, "max_failed_percent": 10}, silence_s=86_400)
FREE = {
    "serve": {"rates": {"device_per_s": 0, "address_per_s": 0, "handshake_per_s": 0}},
    "ingestion": {"rows_per_s": 0},
}
"""Few devices play many: what bounds one of them would bound the measurement."""
REST_S = 45.0
"""Between passes: alerts on what the last one reported are evaluated until then (`AlertSettings.evaluate_every_s`)."""
Figures = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parsed = _parsed(arguments)
    os.sched_setaffinity(0, {LOAD_CORE})
    console = Console(width=130)
    with tempfile.TemporaryDirectory(prefix="edge-fleet-sizing-") as folder, _database(parsed.postgresql) as url:
        found = measured(Path(folder) / "fleet", url, parsed, console)
    if parsed.json:
        Path(parsed.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def measured(folder: Path, database: str, wanted: argparse.Namespace, console: Console) -> Figures:
    """Return all figures, printed as they come."""
    devices = wanted.devices
    found: Figures = {
        "machine": f"{machine()}, Python {platform.python_version()}",
        "calibration": calibration(),
        "database": database.partition(":")[0] or "sqlite",
        "devices": devices,
    }
    console.print(f"{found['machine']}; {found['database']}; {devices:,} devices")
    console.print(f"calibration: {found['calibration']}")
    with served_fleet(folder, database=database, tables=FREE, core=SERVER_CORE) as fleet:
        fleet.repository.add_release(SLOT, "2")
        fleet.replicas[0].start()
        kept = folder.with_name("devices.jsonl")
        found["enrolment"] = _enrolled(fleet, devices, kept, console)
        found["steps"] = asyncio.run(_stepped(fleet, kept, wanted, console))
        found["sizes"] = _sizes(fleet, console)
        found["rollout"] = _rolled_out(fleet, devices, kept, console)
        found["rss_mib"] = _resident(fleet.replicas[0].pid)
    console.print(f"the controller holds {found['rss_mib']:.0f} MiB")
    return found


# ---- enrolment and rollout -------------------------------------------------------------------------------------------
def _enrolled(fleet: ServedFleet, devices: int, kept: Path, console: Console) -> Figures:
    """Let every device enrol, send its inventory and poll once."""
    fleet.replicas[0].end()
    before_bytes, tokens = fleet.database_bytes, fleet.tokens(devices)
    fleet.replicas[0].start()
    settings = Settings(fleet.replicas[0].url, devices, poll_s=3600.0, quiet=True)
    spent_s, began = cpu_s(fleet.replicas[0].pid), time.monotonic()
    run = Run(settings, tokens=tokens, authority=fleet.ca_file.read_text(), keep=kept)

    async def until_told() -> Figures:
        def over(tally: Tally) -> None:
            if tally.answers["telemetry", 200] >= devices:
                task.cancel()

        task = asyncio.create_task(simulate(run, over))
        return await task

    found = asyncio.run(until_told())
    seconds = time.monotonic() - began
    spent_s = cpu_s(fleet.replicas[0].pid) - spent_s
    fleet.replicas[0].end()
    figures = {
        "per_s": devices / seconds,
        "cpu_ms": 1000.0 * spent_s / devices,
        "bytes": (fleet.database_bytes - before_bytes) / devices,
        "answers": found["answers"],
    }
    fleet.replicas[0].start()
    console.print(
        f"enrolled with inventory, first assignment and first report: {figures['per_s']:.0f}/s, "
        f"{figures['cpu_ms']:.2f} ms each, {figures['bytes']:,.0f} bytes of the database each"
    )
    return figures


def _rolled_out(fleet: ServedFleet, devices: int, kept: Path, console: Console) -> Figures:
    """Roll out in two waves; every device polls once a minute and reports like agents do."""
    replica, poll_s = fleet.replicas[0], max(10.0, devices / 50.0)
    settings = Settings(replica.url, devices, poll_s=poll_s)
    run = Run(settings, tokens=[], authority=fleet.ca_file.read_text(), keep=kept, seconds=3600.0, until_committed=True)
    operator = fleet.operator()
    rollout = roll_out(operator, SPEC)
    spent_s, began = cpu_s(replica.pid), time.monotonic()
    found = asyncio.run(simulate(run))
    seconds, spent_s = time.monotonic() - began, cpu_s(replica.pid) - spent_s
    wait_until(lambda: answered(operator.get(f"/v1/rollouts/{rollout}"))["state"] == "finished", 120)
    found |= {"cpu_s": spent_s, "cpu_ms": 1000.0 * spent_s / devices, "busy": spent_s / seconds, "poll_s": poll_s}
    console.print(
        f"rolled out to {found['committed']:,} in {found['first_offer_to_last_commit_s']:.0f} s, polled every "
        f"{poll_s:.0f} s: {found['requests_per_s']:.0f} requests/s, {found['cpu_ms']:.1f} ms a device, "
        f"offer to committed {found['offer_to_committed_s']['p50']:.1f} s, problems {found['problems'] or 'none'}"
    )
    return found


# ---- steps -----------------------------------------------------------------------------------------------------------
async def _stepped(fleet: ServedFleet, kept: Path, wanted: argparse.Namespace, console: Console) -> Figures:
    replica = fleet.replicas[0]
    crowd = await Crowd.gathered(replica.url, fleet.ca_file.read_text(), kept, replica.pid)
    samples: dict[Step, list[Sample]] = {step: [] for step in STEPS}
    for number in range(wanted.passes):
        if number:
            await asyncio.sleep(REST_S)
        for step in STEPS:
            samples[step].append(await crowd.sample(step, wanted.seconds))
    crowd.close()
    return {step.name: _told(step, found, console) for step, found in samples.items()}


def _told(step: Step, found: Sequence[Sample], console: Console) -> Figures:
    spent = [sample.cpu_ms for sample in found]
    figures = {
        "cpu_ms": statistics.median(spent),
        "cpu_ms_least": min(spent),
        "cpu_ms_most": max(spent),
        "per_s": statistics.median(sample.per_s for sample in found),
        "p50_ms": statistics.median(sample.p50_ms for sample in found),
        "p99_ms": statistics.median(sample.p99_ms for sample in found),
        "answers": {status: sum(s.answers.get(status, 0) for s in found) for s in found for status in s.answers},
    }
    console.print(
        f"{step.name:44}{figures['cpu_ms']:7.2f} ms ({min(spent):.2f} - {max(spent):.2f}) {figures['per_s']:7.0f}/s "
        f"p50 {figures['p50_ms']:6.1f} ms p99 {figures['p99_ms']:6.1f} ms  {figures['answers']}"
    )
    return figures


# ---- sizes -----------------------------------------------------------------------------------------------------------
def _sizes(fleet: ServedFleet, console: Console) -> Figures:
    """Return the size of a row of telemetry as agents send it with every poll, with all that is around it."""
    fleet.replicas[0].end()
    with fleet.database.read() as connection:
        count = int(connection.exec_driver_sql("SELECT count(*) FROM telemetry").scalar_one())
        if fleet.sqlite:
            statement = "SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%telemetry%'"
        else:
            statement = "SELECT pg_total_relation_size('telemetry')"
        size = int(connection.exec_driver_sql(statement).scalar_one())
    whole = fleet.database_bytes
    fleet.replicas[0].start()
    figures = {"row_bytes": size / count, "rows": count, "database_bytes": whole}
    console.print(f"a row of telemetry takes {size / count:.0f} bytes ({count:,}); all of the database {whole:,}")
    return figures


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


@contextmanager
def _database(postgresql: bool) -> Any:
    if not postgresql:
        yield ""
        return
    with own_cluster() as cluster:
        yield cluster.url("postgres")


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.performance.fleet")
    parser.add_argument("--devices", type=int, default=2000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each step in a pass")
    parser.add_argument("--postgresql", action="store_true", help="instead of SQLite; every commit on the disk, too")
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
