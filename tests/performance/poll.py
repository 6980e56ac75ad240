"""Cost of a poll without news, process start aside: `python -m tests.performance.poll [POLLS]`.

A signed repository and a bootstrapped device in a temporary folder, a web server of its own, no daemon. Printed are
CPU time per poll (median, and the dearest of them), what a process that polled holds in memory, and what
`edge-agent run` holds while it sleeps between two polls.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gateway.common.domain.probation import ProbationSettings
from gateway.common.log_settings import LogSettings
from gateway.common.logs import configure_logging
from gateway.common.store.settings import StoreSettings
from gateway.device.agent import events
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.settings import AgentSettings
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state.identity import bootstrap, read_identity
from gateway.device.agent.state.storage import opened
from gateway.device.agent.update import work
from tests.simulators.agent_control import SimulatedControl
from tests.simulators.constants import settings_with
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.fleet_server import FleetServer

ROOT = Path(__file__).parents[2]
POLLS, SLOTS = 50, 4
DEVICE = "door-1"
CONFIG = AgentConfig(
    agent=AgentSettings(drain_s=0.0),
    probation=settings_with(ProbationSettings(duration_s=0.0), snapshot_every_s=0.001),
    store=StoreSettings(keep_free_bytes=0),
    log=LogSettings(level="error"),
)


def resident_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def measured(folder: Path, polls: int) -> dict[str, float]:
    """Return CPU milliseconds of an unchanged poll, and memory."""
    repository = FleetRepository(folder / "repository")
    slots = {f"model-{at}": repository.add_release(f"model-{at}", "1") for at in range(SLOTS)}
    repository.assign(DEVICE, slots)
    with FleetServer(repository).running() as server:
        source = folder / "bootstrap"
        source.mkdir()
        (source / "root.json").write_bytes(repository.root_bytes(1))
        urls = {"repository": server.url, "assignment": f"{server.url}assignments/{DEVICE}.json"}
        (source / "device.json").write_text(json.dumps({"schema": 1, "device": DEVICE, **urls}))
        bootstrap(read_identity(source), folder / "store")
        with opened(folder / "store", CONFIG) as storage:
            agent = work.Agent(storage, CONFIG)
            assert not agent.poll().problem
            assert not agent.work(Alarm())
            times = _times(agent, polls)
        return {**times, "polled_mib": resident_mib(os.getpid()), "asleep_mib": asleep_mib(folder / "store")}


def _times(agent: work.Agent, polls: int) -> dict[str, float]:
    spent = []
    for _ in range(polls):
        before_ns = time.thread_time_ns()
        polled = agent.poll()
        assert not polled.problem, polled.problem
        assert not agent.work(Alarm())
        spent.append((time.thread_time_ns() - before_ns) / 1e6)
    return {"median_ms": statistics.median(spent), "most_ms": max(spent)}


def asleep_mib(store: Path) -> float:
    """Return the resident memory of `edge-agent run` that has asked once and sleeps."""
    command = [sys.executable, "-m", "gateway.device.agent", "run", "--state", str(store)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        said = []
        for line in process.stdout:
            said.append(line)
            if events.POLL_SCHEDULED in line:
                break
        else:
            raise RuntimeError("".join(said))
        time.sleep(0.5)  # the child that asked ends after its last line
        found = resident_mib(process.pid)
        process.terminate()
    return found


def main() -> None:
    """Print one line of JSON."""
    configure_logging(CONFIG.log)
    control = SimulatedControl()
    for at in range(SLOTS):
        control.serve(f"model-{at}", "1")
    work.DaemonClient = lambda _settings: control  # type: ignore[assignment,misc]
    polls = int(sys.argv[1]) if len(sys.argv) > 1 else POLLS
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({"polls": polls, "slots": SLOTS, **measured(Path(folder), polls)}))


if __name__ == "__main__":
    main()
