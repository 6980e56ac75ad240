"""A gateway that serves one release for a measurement, with default settings, in a folder of its own."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.release import Release
from gateway.workshop.bench.settings import BenchSettings

HOST = "127.0.0.1"
LOOK_S = 0.05
"""Pause between two looks whether the gateway is ready."""
LOG_LINES = 5
GATEWAY_ID = f"bench-{os.getpid()}"
"""Id of the gateway, in topics: two measurements may share a broker."""
CONFIG = f"""
[gateway]
id = "{GATEWAY_ID}"
[selection]
idle_before_trial_s = 3600.0
[shared_memory]
allowed = true
over_tcp = true
max_region_bytes = 268435456
max_bytes = 536870912
"""
"""No trials while it is measured; shared memory over TCP, which is for this device only."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """Addresses of a gateway. `grpc`, `broker`: None if not known. `process`: None if it was not started here."""

    http: tuple[str, int]
    grpc: tuple[str, int] | None
    process: int | None
    broker: tuple[str, int] | None = None


def link_release(release: Release, models: Path) -> None:
    """Make a model directory that holds only `release`, of links to its files."""
    target = models / release.name / release.version
    own = release.folder.absolute()  # links are read from another folder
    if own.name == release.version and own.parent.name == release.name:
        target.parent.mkdir(parents=True)
        target.symlink_to(own)
        for file in filter(Path.is_file, own.parent.iterdir()):  # Triton's config.pbtxt, and its labels
            (target.parent / file.name).symlink_to(file)
        return
    if own.name == release.name:
        models.mkdir(exist_ok=True)
        target.parent.symlink_to(own)
        return
    for artifact in release.bare.artifacts if release.bare else ():
        link = target / artifact.path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(own / artifact.path)


@contextmanager
def served(
    release: Release, folder: Path, state: Path, broker: tuple[str, int] | None, settings: BenchSettings
) -> Iterator[ServedModel]:
    """Lend a ready gateway with `release`. It inherits the cores of this process. Raise UnreachableError."""
    link_release(release, folder / "models")
    (folder / "edge-gateway.toml").write_text(CONFIG)
    listeners = [socket.create_server((HOST, 0)) for _ in range(2)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    http_port, grpc_port = ports
    command = [sys.executable, "-m", "gateway", "run", "--config", str(folder / "edge-gateway.toml")]
    command += ["--models", str(folder / "models"), "--state", str(state)]
    command += ["--mqtt", f"mqtt://{broker[0]}:{broker[1]}" if broker else "off"]
    command += ["--http", f"{HOST}:{http_port}", "--grpc", f"{HOST}:{grpc_port}"]
    log = folder / "log"
    with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
        try:
            _wait(process, http_port, log, settings.ready_s)
            yield ServedModel((HOST, http_port), (HOST, grpc_port), process.pid, broker)
        finally:
            process.terminate()
            try:
                process.wait(settings.stop_s)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path, limit_s: float) -> None:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s and process.poll() is None:
        if _is_ready(port):
            return
        time.sleep(LOOK_S)
    lines = log.read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
    problem = f"the gateway did not get ready within {limit_s:g} s"
    raise UnreachableError(f"{problem}; its log ends: {' | '.join(lines):.1000}")


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
