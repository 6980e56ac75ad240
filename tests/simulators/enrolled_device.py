"""An enrolled device with real store, spool, certificate and connections, and a fake daemon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.probation import ProbationSettings
from gateway.common.store.settings import StoreSettings
from gateway.common.transfer.connection import ConnectionPool
from gateway.common.transfer.settings import FetchSettings
from gateway.device.agent.clock import Clocks, read_clocks
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.enrol import EnrolmentInput, enrol
from gateway.device.agent.fetch.certificate import with_certificate
from gateway.device.agent.report import reporting
from gateway.device.agent.report.report import document, read_standing
from gateway.device.agent.report.reporting import report
from gateway.device.agent.report.telemetry import ReportInput
from gateway.device.agent.settings import AgentSettings, DiagnosticsSettings, ReportSettings
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state.identity import DeviceIdentity
from gateway.device.agent.state.polled import PollResult
from gateway.device.agent.state.storage import opened, opened_for_reading
from gateway.device.agent.update import work
from tests.simulators.agent_control import SimulatedControl
from tests.simulators.constants import settings_with
from tests.simulators.fleet_controller import FleetController, Told
from tests.simulators.fleet_repository import FleetRepository

DEVICE, SLOT = "door-1", "meter"
CONFIG = AgentConfig(
    agent=AgentSettings(drain_s=0.0),
    fetch=settings_with(FetchSettings(connect_timeout_s=10.0, read_timeout_s=10.0), attempts=1),
    probation=settings_with(ProbationSettings(duration_s=0.0), snapshot_every_s=0.01),
    store=StoreSettings(keep_free_bytes=0),
    diagnostics=settings_with(DiagnosticsSettings(), least_pause_s=0.0),
    telemetry=settings_with(ReportSettings(deadline_s=30.0), retry_s=0.0, retry_limit_s=0.0),
)
INVENTORY = {"arch": "x86_64", "accelerators": []}


class Daemon(SimulatedControl):
    """Fake daemon with an inventory."""

    found: dict[str, Any] = INVENTORY

    def inventory(self) -> dict[str, Any]:
        self._called("inventory")
        return self.found


@dataclass
class Device:
    """An enrolled device, its daemon and its controller."""

    fleet: FleetController
    folder: Path
    identity: DeviceIdentity
    control: Daemon
    clocks: Callable[[], Clocks] = read_clocks

    def update(self, version: str) -> None:
        """Publish and assign a version, then install it."""
        target = self.fleet.repository.add_release(SLOT, version)
        self.fleet.assigned[DEVICE] = ({SLOT: target}, ())
        self.sync()

    def sync(self) -> None:
        """Poll once and do the work that follows."""
        with self.asked():
            pass

    def asked_once(self) -> PollResult:
        """Poll once, with any outcome."""
        with opened(self.folder, CONFIG) as storage:
            agent = work.Agent(storage, CONFIG, clocks=self.clocks)
            with closing(agent.connections):
                return agent.poll()

    def keep_fact(self, name: str, value: str) -> None:
        """Store a fact in the journal."""
        with opened(self.folder, CONFIG) as storage:
            storage.journal.keep_facts({name: value})

    @contextmanager
    def asked(self) -> Iterator[ConnectionPool]:
        """Poll once, do the work, and yield the connections."""
        with opened(self.folder, CONFIG) as storage:
            agent = work.Agent(storage, CONFIG, clocks=self.clocks)
            with closing(agent.connections):
                assert not agent.poll().problem
                agent.work(Alarm())
                yield agent.connections

    def turn(self, config: AgentConfig = CONFIG) -> str:
        """Run one cycle of `edge-agent run`: a poll, and a report on the same connection."""
        with self.asked() as connections:
            return report(self.folder, config, self.identity, connections)

    def report(self, config: AgentConfig = CONFIG) -> str:
        with closing(self.connections()) as connections:
            return report(self.folder, config, self.identity, connections)

    def connections(self) -> ConnectionPool:
        """Return new connections, none open yet, as at the start of a cycle of `edge-agent run`."""
        return ConnectionPool(with_certificate(CONFIG.fetch, self.folder))

    @property
    def told(self) -> Told:
        return self.fleet.told[DEVICE]

    @property
    def status(self) -> dict[str, Any]:
        with opened_for_reading(self.folder, CONFIG) as storage:
            return document(read_standing(storage, self.identity))

    def observed(self) -> ReportInput:
        with opened_for_reading(self.folder, CONFIG) as storage:
            return ReportInput(read_standing(storage, self.identity))


@contextmanager
def enrolled_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Enrol a device in a fleet that runs until the block ends."""
    control = Daemon()
    monkeypatch.setattr(work, "DaemonClient", lambda _settings: control)
    monkeypatch.setattr(reporting, "DaemonClient", lambda _settings: control)
    repository = FleetRepository(folder / "fleet")
    with FleetController(folder / "controller", repository).running() as fleet:
        fleet.tokens["t"] = DEVICE
        application = EnrolmentInput(fleet.url, "t", authority=fleet.authority.file.read_text())
        identity = enrol(application, folder / "store", CONFIG)
        yield Device(fleet, folder / "store", identity, control)
