"""A device of the demo: a gateway and its update agent, both real, on hardware that is not here."""

from __future__ import annotations

import http.client
import json
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from children import Child, Children, free_port

from gateway.device.agent.config import SECTIONS
from tests.simulators import constants

HERE = Path(__file__).resolve().parent
GATEWAY = """
[gateway]
id = "{name}"
[fleet]
store = "{folder}/agent"
[control]
listen = "unix:{folder}/control.sock"
[selection]
idle_before_trial_s = 3600.0
[trial]
measure_s = 0.2
"""
AGENT = """
[control]
socket = "{folder}/control.sock"
[agent]
retry_s = 2.0
drain_s = 2.0
[store]
keep_free_bytes = 0
[telemetry]
retry_s = 1.0
[probation]
duration_s = 4.0
snapshot_every_s = 0.5
slower_factor = 3.0
[wake]
url = "mqtt://127.0.0.1:{broker}"
retry_s = 0.5
least_pause_s = 0.5
spread_s = 0.2
"""
"""A device in the field watches a new version for ten minutes; here for as long as a viewer has patience.

Three devices share this machine's cores, so that a run may take three times as long before it counts as slower.
`constants.take` takes out what the agent's file cannot set.
"""


@dataclass(frozen=True, slots=True)
class Hardware:
    """Hardware of a device. `kind`: as tests/devices/catalogue.py calls it."""

    name: str
    kind: str
    words: str


class Device:
    """Device of the demo, to `enrol`, `start` and `wait` for."""

    def __init__(self, hardware: Hardware, folder: Path, children: Children, broker: int) -> None:
        self.name, self.words = hardware.name, hardware.words
        self._kind, self._children, self._folder = hardware.kind, children, folder / hardware.name
        self._gateway: Child | None = None
        self.grpc = f"127.0.0.1:{free_port()}"
        (self._folder / "models").mkdir(parents=True)
        values = {"name": self.name, "folder": self._folder, "broker": broker}
        (self._folder / "edge-gateway.toml").write_text(GATEWAY.format(**values))
        settings, self._hurry = constants.take(AGENT.format(**values), SECTIONS)
        (self._folder / "edge-agent.toml").write_text(settings)

    def enrol(self, url: str, authority: Path, token: Path) -> None:
        """Make a key on the device, and let the controller sign for it."""
        self._children.run("gateway.device.agent", "enrol", url, "--token-file", token, "--ca", authority, *self._agent)

    def start(self) -> None:
        """Start gateway and agent, in no order: each waits for the other."""
        options = ["--models", self._folder / "models", "--state", self._folder / "state", "--grpc", self.grpc]
        config = ["--config", self._folder / "edge-gateway.toml", "--http", "off", "--mqtt", "off"]
        simulated = [sys.executable, HERE / "simulated.py", self._kind, self._folder / "tree"]
        self._gateway = self._children.start(f"{self.name}-gateway", [*simulated, "run", *options, *config])
        agent = constants.command((sys.executable, "-m", "gateway.device.agent"), self._hurry)
        self._children.start(f"{self.name}-agent", [*agent, "run", *self._agent])

    def wait(self) -> None:
        """Wait until the gateway answers its agent."""
        if self._gateway is None:
            raise SystemExit(f"{self.name} was not started")
        self._gateway.wait_for(self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self.status)
        except OSError:
            return False

    @property
    def serving(self) -> dict[str, dict[str, Any]]:
        """Model versions that answer requests without a version, as the gateway itself reports them, by version."""
        models = self.status["models"]
        return {model["version"]: model for model in models if model["state"] == "READY" and model["weight"]}

    @property
    def shares(self) -> dict[str, int]:
        """Percentages of requests, by version."""
        return {version: model["weight"] for version, model in self.serving.items()}

    @property
    def status(self) -> dict[str, Any]:
        """`GET /v1/status` on the gateway's control socket."""
        connection = _Local(str(self._folder / "control.sock"))
        try:
            connection.request("GET", "/v1/status")
            found: dict[str, Any] = json.loads(connection.getresponse().read())
            return found
        finally:
            connection.close()

    @property
    def _agent(self) -> list[str | Path]:
        return ["--config", self._folder / "edge-agent.toml", "--state", self._folder / "agent"]


class _Local(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self._path)
