"""Scenario for `power`: the whole agent updates a device from version 1 to 2 from a folder.

Everything but the daemon is real: signatures, floors, journal, store. The daemon is a fake that accepts every command.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gateway.device.agent.fetch.updater  # noqa: F401  loads tuf once, before the simulator forks
from gateway.common.domain.probation import ProbationSettings
from gateway.common.log_settings import LogSettings
from gateway.common.logs import configure_logging
from gateway.common.store.errors import SpaceError, StoreError
from gateway.common.store.settings import StoreSettings
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.report.report import document, read_standing
from gateway.device.agent.settings import AgentSettings
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state.identity import bootstrap, read_identity
from gateway.device.agent.state.storage import Storage, opened, opened_for_reading
from gateway.device.agent.update import work
from gateway.device.agent.update.verify import Verification
from tests.simulators.agent_control import SimulatedControl
from tests.simulators.constants import settings_with
from tests.simulators.fleet_repository import FleetRepository

DEVICE, SLOT = "door-1", "meter"
CONFIG = AgentConfig(
    agent=AgentSettings(drain_s=0.0),
    probation=settings_with(ProbationSettings(duration_s=0.0), snapshot_every_s=0.001),
    store=settings_with(StoreSettings(keep_free_bytes=0), sync_every_bytes=60_000),
    log=LogSettings(level="error"),
)


def prepare(folder: Path) -> None:
    """Commit version 1. Folders `1` and `2` are the repository at the time of each assignment."""
    repository = FleetRepository(folder / "fleet")
    source = folder / "bootstrap"
    source.mkdir()
    (source / "root.json").write_bytes(repository.root_bytes(1))
    who = {"schema": 1, "device": DEVICE, "repository": "http://localhost/", "assignment": "http://localhost/a"}
    (source / "device.json").write_text(json.dumps(who))
    for version in ("1", "2"):
        content = hashlib.sha256(version.encode()).digest() * 4000
        path = repository.add_release(SLOT, version, variants={"only": content}, floor="1")
        repository.assign(DEVICE, {SLOT: path})
        shutil.copytree(repository.public, folder / version)
    shutil.rmtree(folder / "fleet")
    bootstrap(read_identity(source), folder / "store")
    sync(folder, "1", lambda _: None)


def run(folder: Path, claim: Callable[[str], None]) -> None:
    """Update to version 2."""
    sync(folder, "2", claim)


def sync(folder: Path, version: str, claim: Callable[[str], None]) -> None:
    """Run `edge-agent sync --from`. Raise the error that stopped it."""
    configure_logging(CONFIG.log)
    with opened(folder / "store", CONFIG) as storage:

        def committed() -> None:
            claim(json.dumps({"installed": serving(storage)}))

        control = SimulatedControl(on_commit=committed)
        work.DaemonClient = lambda _settings: control  # type: ignore[assignment,misc]
        agent = work.Agent(storage, CONFIG, carried=folder / version)
        polled = agent.poll()
        claim(json.dumps({"floors": floors(storage)}))
        waiting = agent.work(Alarm())
        problem = "; ".join([polled.problem, *waiting.values()]).strip("; ")
        if "no room on the disk" in problem or "may be used on this disk" in problem:
            raise SpaceError(problem)
        if problem:
            raise StoreError(problem)


def serving(storage: Storage) -> str:
    """Return the committed version."""
    committed = storage.active().slots.get(SLOT)
    return committed.version if committed else ""


def floors(storage: Storage) -> dict[str, Any]:
    """Return all floors as comparable values."""
    found = storage.journal.floors()
    return {**found.numbers, **{name: int(version) for name, version in found.versions.items()}}


def inspect(folder: Path) -> dict[str, Any]:
    """Return what `status` and `verify` report at the next boot."""
    store = folder / "store"
    with opened_for_reading(store, CONFIG) as storage:
        identity = read_identity(store)
        told = document(read_standing(storage, identity))
        checked = Verification(storage, identity.root, CONFIG.trust).run()
        blobs = [path.name for path in (store / "blobs/sha256").iterdir() if len(path.name) == 64]
        return {
            "serves": {SLOT: serving(storage)},
            "wrong": [line.problem for line in checked if line.problem]
            + [name for name in blobs if not storage.blobs.verify(name)],
            "state": told["state"],
            "finished": [update["version"] for update in told["history"] if update["state"] == "committed"],
            "previous": {slot: entry["previous"] for slot, entry in told["slots"].items()},
            "floors": floors(storage),
            "blobs": sorted(blobs),
            "names": sorted(p.relative_to(store).as_posix() for p in store.rglob("*") if p.is_file()),
        }
