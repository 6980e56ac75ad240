"""A real device of a fleet: repository on a local web server, daemon and agent as processes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from fleet.publisher.releases import Terms
from gateway.common.store.plain import file_digest
from gateway.device.agent.config import SECTIONS
from gateway.device.agent.control import DaemonClient
from gateway.device.agent.settings import ControlClientSettings
from tests.simulators import constants, runtime_only
from tests.simulators.daemon import LIVE, QUIET, ROOT, WAIT_S, Daemon, copy_model
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.fleet_server import FleetServer
from tests.simulators.hammer import Hammer

AGENT = (runtime_only.interpreter(), "-m", "gateway.device.agent")
DEVICE, SLOT = "door-1", "meter-reader"
SETTINGS: dict[str, dict[str, Any]] = {
    "probation": {"duration_s": 0.3, "snapshot_every_s": 0.1, "slower_factor": 30.0},
    "fetch": {
        "connect_timeout_s": 2.0,
        "read_timeout_s": 1.0,
        "document_deadline_s": 2.0,
        "blob_deadline_s": 2.0,
        "minimum_rate_window_s": 0.5,
        "attempts": 2,
        "backoff_base_s": 0.01,
    },
    "agent": {"drain_s": 2.0},
    "store": {"keep_free_bytes": 0},
}
"""Short times, since tests wait for all of them."""
TRIALS = "[trial]\nmeasure_s = 0.02\nnice = 0\ndeadline_s = 15.0\n"
ONE_VARIANT = "onnx-int8"
PAUSE_S = 0.005
"""Pause between two requests of the background client, which shares a small machine with agent and daemon."""

Change = Callable[[Path], None]
"""Modify the folder of a model version."""


@dataclass(frozen=True)
class Done:
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> dict[str, Any]:
        """The output of --json."""
        document: dict[str, Any] = json.loads(self.out)
        return document


class FleetDevice:
    """Device made by `fleet_device`. `slot` is meter-reader; no version of it is published at first."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder, self.store = folder, folder / "agent"
        self.repository = FleetRepository(folder / "repository")
        self.server = FleetServer(self.repository)
        self.socket, self.config_file = folder / "control.sock", folder / "edge-agent.toml"
        (folder / "by-hand").mkdir()
        config = f'{QUIET}{TRIALS}[fleet]\nstore = "{self.store}"\n[control]\nlisten = "unix:{self.socket}"\n'
        config += "[pipelines]\npython = true\n"
        self.daemon = Daemon(folder / "gateway", models=folder / "by-hand", state=state, config=config)
        self.control = DaemonClient(ControlClientSettings(str(self.socket)))
        self.newest = 0
        self.configure()

    # ---- the agent ---------------------------------------------------------------------------------------------------
    def configure(self, **tables: Mapping[str, Any]) -> None:
        """Write the agent's settings, with differences to SETTINGS."""
        wanted: dict[str, dict[str, Any]] = {"control": {"socket": str(self.socket), "load_timeout_s": 30.0}}
        for name, table in (*SETTINGS.items(), *tables.items()):
            wanted[name] = {**wanted.get(name, {}), **table}
        lines = [[f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())] for name, table in wanted.items()]
        text = "\n".join(line for table in lines for line in table) + "\n"
        settings, self.fixed = constants.take(text, SECTIONS)
        self.config_file.write_text(settings)

    def bootstrap(self) -> Done:
        """Make it a device of the repository, pinned to its first root."""
        source = self.folder / "bootstrap"
        source.mkdir(exist_ok=True)
        (source / "root.json").write_bytes(self.repository.root_bytes(1))
        document = {
            "schema": 1,
            "device": DEVICE,
            "repository": self.server.url,
            "assignment": f"{self.server.url}assignments/{DEVICE}.json",
        }
        (source / "device.json").write_text(json.dumps(document))
        return self.agent("bootstrap", str(source))

    def agent(self, verb: str, *arguments: str, wrap: Sequence[str] = (), **environ: str) -> Done:
        """Run a verb to its end; `wrap`: a command that runs it."""
        done = subprocess.run(
            [*wrap, *self.command(verb, *arguments)],
            cwd=ROOT,
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr)

    def command(self, verb: str, *arguments: str) -> list[str]:
        """Return the command line of a verb."""
        program = constants.command(AGENT, self.fixed)
        return [*program, verb, *arguments, "--config", str(self.config_file), "--state", str(self.store)]

    @contextmanager
    def started(self, verb: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run a verb in the background; kill it at the end if necessary."""
        command = self.command(verb, *arguments)
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def sync(self, *arguments: str, **options: Any) -> Done:
        """Run `edge-agent sync --json`."""
        return self.agent("sync", "--json", *arguments, **options)

    @property
    def status(self) -> dict[str, Any]:
        """Run `edge-agent status --json`."""
        done = self.agent("status", "--json")
        assert done.code == 0, done.err
        return done.told

    # ---- the repository ----------------------------------------------------------------------------------------------
    def publish(self, change: Change | None = None, *, floor: str | None = None) -> str:
        """Publish the next version of meter-reader with one variant, modified by `change`. Return its target path."""
        self.newest += 1
        version = copy_model(SLOT, self.folder / "models", str(self.newest))
        keep_variant(version, ONE_VARIANT)
        if change:
            change(version)
        return self.repository.add_model(version, terms=Terms(floor))

    def assign(self, target: str | None, **changes: Any) -> bytes:
        """Assign one release or None to the slot. Return the published document."""
        return self.repository.assign(DEVICE, {SLOT: target} if target else {}, **changes)

    def update(self, change: Change | None = None) -> Done:
        """Publish, assign, and sync."""
        self.assign(self.publish(change))
        return self.sync()

    # ---- the daemon --------------------------------------------------------------------------------------------------
    @contextmanager
    def powered(self) -> Iterator[None]:
        """Run the daemon. At the end it must stop with exit code 0 and without a traceback in its log."""
        self.daemon.start()
        try:
            yield
            assert self.daemon.stop() == 0
            assert "Traceback" not in self.daemon.log, self.daemon.log
        finally:
            if self.daemon in LIVE:
                self.daemon.kill()

    @property
    def serving(self) -> dict[str, int]:
        """The percentage of the slot's requests by version, as the daemon reports it."""
        found = [one for one in self.control.status()["models"] if one["model"] == SLOT]
        return {one["version"]: one["weight"] for one in found if one["weight"]}

    def wait_for_share(self, agent: subprocess.Popen[str]) -> None:
        """Wait until `agent` has given the newest version a share of the requests."""
        deadline = time.monotonic() + WAIT_S
        while str(self.newest) not in self.serving:
            assert agent.poll() is None, agent.communicate()
            assert time.monotonic() < deadline, self.daemon.log
            select.select([], [], [], 0.02)  # poll: the daemon has no event for routes

    @contextmanager
    def hammered(self, rows: int = 1) -> Iterator[Hammer]:
        """Send gRPC requests continuously. Every one must succeed with the right result."""
        hammer = Hammer(SLOT, rows, PAUSE_S)
        thread = threading.Thread(target=hammer.over_grpc, args=(self.daemon.grpc,))
        thread.start()
        try:
            hammer.wait_answers()
            yield hammer
            hammer.wait_answers()
        finally:
            hammer.stop()
            thread.join(WAIT_S)
        assert hammer.failures == []


def keep_variant(version: Path, name: str) -> None:
    """Remove all other variants from a manifest."""
    manifest = version / "manifest.toml"
    head, *variants = manifest.read_text().split("[[variant]]\n")
    (kept,) = [text for text in variants if text.startswith(f'name = "{name}"')]
    manifest.write_text(f"{head}[[variant]]\n{kept}")


def exchange_artifact(version: Path, content: bytes, file: str = f"{ONE_VARIANT}/model.onnx") -> None:
    """Replace an artifact, and its digest and size in the manifest."""
    place, manifest = version / file, version / "manifest.toml"
    text, before, size = manifest.read_text(), file_digest(place), place.stat().st_size
    place.write_bytes(content)
    text = text.replace(before, file_digest(place)).replace(f"bytes = {size}", f"bytes = {len(content)}")
    manifest.write_text(text)


Kind = TypeVar("Kind", bound=FleetDevice)


@contextmanager
def fleet_device(
    folder: Path,
    state: Path,
    *,
    installed: bool = True,
    kind: type[Kind] = FleetDevice,  # type: ignore[assignment]
) -> Iterator[Kind]:
    """Run a bootstrapped device with its daemon. With `installed`, version 1 is committed and serves."""
    device = kind(folder, state)
    with device.server.running():
        assert device.bootstrap().code == 0
        with device.powered():
            if installed:
                done = device.update()
                assert done.code == 0, done.err
            yield device


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[FleetDevice]:
    """Run a device on which version 1 serves."""
    with fleet_device(tmp_path_factory.mktemp("device"), state) as made:
        yield made
