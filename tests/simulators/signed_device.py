"""Device for system tests: a signed repository of the shipped models, its store, and a daemon."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tritonclient.grpc as triton

from gateway.device.agent.control import ControlClientSettings, DaemonClient
from tests.simulators.daemon import QUIET, SHORT_TRIALS, Daemon, copy_model, running
from tests.simulators.device_store import DeviceStore
from tests.simulators.fleet_repository import FleetRepository

VARIANT = ("onnx-int8",)
"""The only fetched variant, to save time for trials."""


class SignedDevice:
    """Device. `paths`: targets by (owner, model, version); `hand`: the model directory, empty at first."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder, self.state = folder, state
        self.repository = FleetRepository(folder / "repository")
        self.hand = folder / "hand"
        self.hand.mkdir()
        self.store = DeviceStore(folder / "store", self.repository)
        self.socket = folder / "control.sock"
        self.control = DaemonClient(ControlClientSettings(str(self.socket)))

    def publish(self, model: str, version: str = "1", owner: str = "acme") -> str:
        """Publish a shipped model with this version. Return its target path."""
        return self.repository.add_model(copy_model(model, self.folder / "published" / owner, version), owner)

    def config(self, store: Path | None = None, more: str = "") -> str:
        """Return the daemon's configuration; `more` is added to `[fleet]`."""
        fleet = f'[fleet]\nstore = "{store or self.store.folder}"\n{more}'
        return f'{QUIET}{SHORT_TRIALS}{fleet}[control]\nlisten = "unix:{self.socket}"\n'

    @contextmanager
    def running(self, store: Path | None = None, more: str = "", **options: Any) -> Iterator[Daemon]:
        """Run a daemon on this store, without agent and network."""
        config = self.config(store, more)
        options = {"models": self.hand, "state": self.state, "http": ["off"], "config": config, **options}
        with running(self.folder / "gateway", **options) as daemon:
            yield daemon

    def standings(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return GET /v1/status by model and version."""
        return {(line["model"], line["version"]): line for line in self.control.status()["models"]}


def index(daemon: Daemon) -> dict[tuple[str, str], tuple[str, str]]:
    """Return RepositoryIndex: state and reason by model and version."""
    with triton.InferenceServerClient(daemon.grpc) as client:
        return {(one.name, one.version): (one.state, one.reason) for one in client.get_model_repository_index().models}


def poisoned(folder: Path) -> Path:
    """Replace an artifact by one that no runtime can read; the release stays complete."""
    artifact = folder / "onnx-int8" / "model.onnx"
    before, content = artifact.read_bytes(), b"no network"
    artifact.write_bytes(content)
    manifest = folder / "manifest.toml"
    text = manifest.read_text().replace(hashlib.sha256(before).hexdigest(), hashlib.sha256(content).hexdigest())
    manifest.write_text(text.replace(f"bytes = {len(before)}", f"bytes = {len(content)}"))
    return folder
