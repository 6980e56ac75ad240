"""Device of a fleet that assigns settings and the model: `Settled`, and the fixture `device` that makes one."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.common.domain.activation import Activation
from gateway.device.agent.config import load_config
from gateway.device.agent.state.slot_state import read_state
from gateway.device.agent.state.storage import opened_for_reading
from tests.simulators.daemon import WAIT_S, Daemon
from tests.simulators.fleet_device import DEVICE, SLOT, Done, FleetDevice, fleet_device

SETTINGS = "@settings"
TIMES = {"duration_s": 0.3, "ready_s": 20.0, "snapshot_every_s": 0.1, "spare_s": 20.0}
GOOD = "[http]\nmax_json_bytes = 1000\n"


class Settled(FleetDevice):
    """Device of a fleet that assigns settings and the model."""

    attempt = 0

    def __init__(self, folder: Path, state: Path) -> None:
        state = Path(shutil.copytree(state, folder / "state"))  # kept verdicts, and settings that no other test has
        super().__init__(folder, state)
        made, config = self.daemon, self.daemon.config_file.read_text()
        address = f"unix:{folder / 'grpc.sock'}"  # the same after each restart
        self.daemon = Daemon(folder / "gateway", models=made.models, state=state, config=config, grpc=(address,))

    def send(self, toml: str, files: tuple[str, ...] = ()) -> Done:
        """Publish settings, assign them, and sync."""
        self.offer(toml, files)
        return self.sync()

    def offer(self, toml: str, files: tuple[str, ...] = ()) -> None:
        self.attempt += 1
        settings = self.repository.add_settings("berlin", toml)
        model = f"models/acme/{SLOT}/{self.newest}/release"
        extra = {"attempts": {SETTINGS: self.attempt}}
        self.repository.assign(DEVICE, {SLOT: model, SETTINGS: settings}, files=files, extra=extra)

    @property
    def slot(self) -> dict[str, Any]:
        """Return what the agent reports of the slot."""
        found: dict[str, Any] = self.status["slots"][SETTINGS]
        return found

    @property
    def refuses_json(self) -> bool:
        """Return whether GOOD is in force: a request of more than 1,000 bytes is too large."""
        answer = httpx.post(f"http://{self.http}/v2/models/{SLOT}/infer", content=b"{" + b" " * 2000)
        return answer.status_code == 413

    @property
    def http(self) -> str:
        """Return where HTTP listens since the last restart."""
        return self.daemon.addresses("http")[-1]

    @property
    def activation(self) -> Activation:
        """Return the settings that the agent began last, as it hands them to the daemon."""
        with opened_for_reading(self.store, load_config(self.config_file)) as storage:
            return read_state(storage.journal, SETTINGS).activation

    @contextmanager
    def verifying(self) -> Iterator[int]:
        """Hold the process that verifies settings, from its start to the end of the context. Yield its id."""
        pid = self._verifier()
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)

    def _verifier(self) -> int:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for pid in children(self.daemon.pid):
                if b"settings_verifier" in command_line(pid):
                    return pid
            select.select([], [], [], 0.002)  # poll: there is no event for another process's children
        raise AssertionError(self.daemon.log)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, ended ones that it has not waited for included."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in found for child in file.read_text().split()]


def command_line(pid: int) -> bytes:
    """Return the command of a process; b"" if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


@pytest.fixture
def device(tmp_path: Path, state: Path) -> Iterator[Settled]:
    with fleet_device(tmp_path, state, kind=Settled) as made:
        made.configure(settings=TIMES)
        yield made


def instance(device: FleetDevice) -> str:
    return str(device.control.status()["instance"])
