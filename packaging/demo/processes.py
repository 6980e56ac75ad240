"""The real processes of the demo: mosquitto, the gateway, and the gateway's own commands."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

START_S = 30.0
STOP_S = 15.0
GATEWAY = [sys.executable, "-m", "gateway"]
ROOT = Path(__file__).resolve().parents[2]
ID = "demo"

CONFIG = """
[gateway]
id = "{id}"
[[mqtt.route]]
name = "wrists"
topics = ["sensors/+/imu"]
sensor = "topic[1]"
content_type = "application/json"
model = "activity"
qos = 1
hop_rows = 100
"""


def free_port() -> int:
    """Return a TCP port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def edge_gateway_json(*arguments: str) -> dict[str, Any]:
    """Return what `edge-gateway … --json` prints."""
    done = subprocess.run(
        [*GATEWAY, *arguments, "--json"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode not in {0, 1} or not done.stdout:
        raise SystemExit(f"edge-gateway {' '.join(arguments)} failed:\n{done.stderr}")
    return dict(json.loads(done.stdout))


class Process:
    """A child that is terminated, then killed, when the block ends."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        with log.open("wb") as output:
            self.child = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.terminate()
        try:
            self.child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def wait_for(self, ready: Any, what: str) -> float:
        """Return the seconds until `ready()` holds.

        End the demo with the child's last words where it dies or takes too long.
        """
        began = time.monotonic()
        while time.monotonic() - began < START_S and self.child.poll() is None:
            if ready():
                return time.monotonic() - began
            time.sleep(0.01)
        raise SystemExit(f"{what} did not start; its last words:\n{self.log.read_text()[-2000:]}")


class Broker(Process):
    """mosquitto on a port of its own, for this machine only."""

    def __init__(self, folder: Path, port: int) -> None:
        self.port = port
        program = shutil.which("mosquitto", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if program is None:
            raise SystemExit("mosquitto is missing: sudo apt-get install mosquitto")
        config = folder / "mosquitto.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\nmax_queued_messages 0\n"
        )
        super().__init__([program, "-c", str(config)], folder / "mosquitto.log")

    def __enter__(self) -> Broker:
        self.wait_for(lambda: _answers(self.port), "mosquitto")
        return self


@dataclass(frozen=True, slots=True)
class Cost:
    """Resources used by a process: its CPU time, and its resident memory now."""

    cpu_s: float
    memory_bytes: int

    def since(self, before: Cost) -> Cost:
        """Return the CPU time used since `before`."""
        return Cost(self.cpu_s - before.cpu_s, self.memory_bytes)


class Gateway(Process):
    """`edge-gateway run` with its defaults, on ports of its own."""

    def __init__(self, folder: Path, models: Path, state: Path, *, mqtt: int, grpc: int, http: int) -> None:
        self.grpc, self.http, self.id, self.ready_s = f"127.0.0.1:{grpc}", http, ID, 0.0
        config = folder / "gateway.toml"
        config.write_text(CONFIG.format(id=ID))
        options = ["--config", config, "--models", models, "--state", state, "--mqtt", f"mqtt://127.0.0.1:{mqtt}"]
        listen = ["--grpc", self.grpc, "--http", f"127.0.0.1:{http}"]
        super().__init__([*GATEWAY, "run", *map(str, options), *listen], folder / "gateway.log")

    def __enter__(self) -> Gateway:
        self.ready_s = self.wait_for(lambda: _ready(self.http), "the gateway")
        return self

    def cost(self) -> Cost:
        """Return CPU time and memory of the gateway's process now."""
        process = psutil.Process(self.child.pid)
        times = process.cpu_times()
        return Cost(times.user + times.system, process.memory_info().rss)


def _ready(port: int) -> bool:
    """Return whether the gateway reports itself ready: its port is open before its models are up."""
    connection = HTTPConnection("127.0.0.1", port, timeout=START_S)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
