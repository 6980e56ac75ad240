"""A device's installer without systemd: a real folder of versions, real environments, and simulated units.

`Device.serve` copies what an agent would have fetched of a published release into the store.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleet.publisher.repository import blob_file, metadata_file, root_versions, target_file
from gateway.common.notify import Notifier
from gateway.common.store.roots import ROOT_HISTORY
from gateway.device.agent.update import software, software_work
from gateway.device.domain.software_request import InstallRequest
from gateway.device.domain.software_update import SoftwareUpdate, UnitState
from gateway.device.installer.commands import UNITS
from gateway.device.installer.places import CONFIRMED, CURRENT, VersionFolder
from gateway.device.installer.record import InstallRecords
from gateway.device.installer.server import InstallerServer
from gateway.device.installer.settings import SoftwareSettings
from gateway.device.installer.worker import InstallerWorker
from tests.simulators.constants import settings_with
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.wheels import pip_wheel, small_wheel

FIRST = "0.0.1-00000000"
"""Name of the first version of a device."""


@dataclass
class SimulatedUnits:
    """Simulated systemd units. A restart takes effect at once; units in `broken` are never active."""

    clock: list[float]
    started_s: dict[str, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    restarts: list[tuple[str, ...]] = field(default_factory=list)

    def states(self) -> Mapping[str, UnitState]:
        return {
            unit: UnitState(unit not in self.broken, wanted=True, since_s=self.started_s.get(unit, 0.0), state="failed")
            for unit in UNITS
        }

    def restart(self, units: Sequence[str]) -> None:
        self.restarts.append(tuple(units))
        self.started_s |= dict.fromkeys(units, self.clock[0])


class Device:
    """A device. `worker()` starts the installer on its disk; `clock[0]`: seconds since the boot `boot`."""

    def __init__(
        self, folder: Path, repository: FleetRepository, *, store: Path | None = None, **settings: float
    ) -> None:
        self.folder, self.repository = folder, repository
        self.clock, self.boot = [100.0], "boot-1"
        self.units = SimulatedUnits(self.clock)
        self.store = store or folder / "store"
        self.home, self.records = VersionFolder(folder / "lib"), InstallRecords(folder / "state")
        given = SoftwareSettings(str(self.store), str(folder / "gateway.toml"), "root", keep_free_bytes=0)
        self.settings = settings_with(given, **settings)
        self.home.environment(FIRST).mkdir(parents=True)
        for link in (CONFIRMED, CURRENT):
            self.home.point(link, FIRST)
        self.records.keep_root(repository.root_bytes(1))

    def worker(self) -> InstallerWorker:
        """Return a newly started installer."""
        made = InstallerWorker(
            self.home,
            self.records,
            self.units,
            self.settings,
            boot=lambda: (self.boot, self.clock[0]),  # type: ignore[arg-type]
        )
        made.resume()
        return made

    def serve(self, path: str) -> InstallRequest:
        """Copy a published release, its evidence and its wheels into the store. Return the request for it."""
        public, published = self.repository.public, self.repository.published
        target, targets, role = published.target(path), published.targets, published.roles["software"]
        assert target
        assert targets
        blobs = self.store / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        for blob in (public / blob_file("x")).parent.iterdir():
            shutil.copy(blob, blobs)
        history = self.store / ROOT_HISTORY
        history.mkdir(parents=True, exist_ok=True)
        for version in root_versions(public):
            shutil.copy(public / metadata_file("root", version), history)
        documents = [
            public / metadata_file("targets", targets.signed.version),
            public / metadata_file("software", role.signed.version),
            public / target_file(target),
        ]
        digests = [self.put(document.read_bytes()) for document in documents]
        return InstallRequest(path, digests[2], (digests[0], digests[1]))

    def put(self, content: bytes) -> str:
        """Write a blob into the store, as any program with write permission can."""
        digest = hashlib.sha256(content).hexdigest()
        (self.store / "blobs" / "sha256" / digest).write_bytes(content)
        return digest

    def run(self, worker: InstallerWorker) -> SoftwareUpdate:
        """Run the installer until it waits or is done. Return the record."""
        for _ in range(50):
            pause_s = worker.advance()
            if pause_s is None or pause_s > 0:
                break
        found = self.records.update()
        assert found
        return found


def wheels(folder: Path, version: str, files: Mapping[str, str] | None = None, requires: Sequence[str] = ()) -> Path:
    """Make a folder with a release: a small wheel of the program, and pip's wheel."""
    small_wheel(folder, version, files, requires)
    shutil.copy(pip_wheel(), folder)
    return folder


def running(name: str, patch: pytest.MonkeyPatch) -> None:
    """Make this process's agent belong to the environment `name`."""
    for module in (software, software_work):
        patch.setattr(module, "own_environment", lambda: name)


@contextmanager
def socket_activated(device: Device, path: str) -> Iterator[None]:
    """Act as systemd for the installer's socket: restart the installer whenever it ends."""
    stopped = threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(4)

        def serve() -> None:
            while not stopped.is_set():
                InstallerServer(listener, device.worker(), device.settings, Notifier(None)).run()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            device.clock[0] += 10_000  # a probation ends
            thread.join()
