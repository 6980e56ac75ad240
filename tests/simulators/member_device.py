"""A real device and its controller: the controller in this process, daemon and agent as processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from fleet.controller.authority.settings import AuthoritySettings
from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import SchedulerSettings
from tests.simulators.asking import enrolment_token
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_device import DEVICE, SLOT, Done, FleetDevice
from tests.simulators.operator import until
from tests.simulators.served_fleet import roll_out

TURN_S = 0.1
PATIENT = {"minimum_rate_window_s": 10.0, "document_deadline_s": 20.0, "read_timeout_s": 10.0}
"""Long timeouts, since the controller shares a small machine with its clients."""


class MemberDevice(FleetDevice):
    """Device made by `member_device`, not enrolled yet. `fleet` is its controller."""

    fleet: RunningController

    def enrol(self, device: str = DEVICE, **given: Any) -> Done:
        """Run `edge-agent enrol` with a new token."""
        file = self.folder / "token"
        file.write_text(enrolment_token(self.fleet, device, **given))
        return self.agent("enrol", self.fleet.url, "--token-file", str(file), "--ca", str(self.fleet.ca_file))

    def roll_out(self, operator: httpx.Client, target: str, **changes: Any) -> str:
        """Start a rollout of a published release to all devices. Return its id."""
        path = target.removesuffix("/release").removeprefix("models/")
        spec = {
            "name": path.replace("/", "-"),
            "slot": SLOT,
            "target": path,
            "query": "all",
            "waves": [{"percent": 100}],
            "soak_s": 0,
            "success": {"min_sample": 1, "min_percent": 100},
            "abort": {"min_sample": 1, "max_failed_percent": 0, "confidence": 0.5},
            "silence_s": 3600,
            "deadline_s": 86_400,
            **changes,
        }
        until(lambda: operator.get(f"/v1/releases/{path}").is_success, "the leader does not read the release")
        return roll_out(operator, spec)


@contextmanager
def member_device(folder: Path, state: Path, config: FleetConfig | None = None) -> Iterator[MemberDevice]:
    """Run a device and its daemon; nothing is published."""
    device = MemberDevice(folder, state)
    config = replace(config or FleetConfig(), scheduler=SchedulerSettings(tick_s=TURN_S))
    with controlling(folder / "controller", config, device.repository) as running:
        device.fleet = running
        device.configure(fetch=PATIENT)
        with device.powered():
            yield device


def short_lived(config: FleetConfig | None = None) -> FleetConfig:
    """Return a configuration with certificates that must be renewed at once."""
    return replace(config or FleetConfig(), authority=AuthoritySettings(validity_d=120 / 86_400))
