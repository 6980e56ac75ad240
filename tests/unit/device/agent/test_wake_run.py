"""`edge-agent enrol` and `run` as processes: a controller over mutual TLS, a real broker, a hint, telemetry."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from gateway.device.agent.config import SECTIONS
from tests.simulators import constants
from tests.simulators.broker import mosquitto
from tests.simulators.daemon import ROOT
from tests.simulators.fleet_controller import FleetController
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.mqtt_peer import peer

DEVICE = "door-1"
CONFIG = """
[control]
socket = "{folder}/no-daemon.sock"
[wake]
url = "{url}"
least_pause_s = 0.0
spread_s = 0.0
[fetch]
attempts = 1
"""
AGENT = [sys.executable, "-m", "gateway.device.agent"]


def polls(fleet: FleetController) -> int:
    return sum(call.path == "/v1/self/assignment" for call in fleet.asked)


async def until_told(fleet: FleetController, count: int) -> None:
    """Wait until the device has polled so often, and reported its state as often."""
    while polls(fleet) < count or DEVICE not in fleet.told or len(fleet.told[DEVICE].of("vitals")) < count:
        await asyncio.to_thread(threading.Event().wait, 0.02)


def test_a_device_enrols_asks_tells_and_is_woken(tmp_path: Path) -> None:
    async def run(fleet: FleetController) -> None:
        (tmp_path / "broker").mkdir()
        async with mosquitto(tmp_path / "broker") as broker, peer(broker.port) as sender:
            config = tmp_path / "edge-agent.toml"
            settings, given = constants.take(CONFIG.format(folder=tmp_path, url=broker.url), SECTIONS)
            config.write_text(settings)
            common = ["--config", str(config), "--state", str(tmp_path / "store")]
            enrol = [*AGENT, "enrol", fleet.url, "--token", "t", "--ca", str(fleet.authority.file), *common]
            subprocess.run(enrol, cwd=ROOT, check=True, capture_output=True)
            run = [*constants.command(AGENT, given), "run", *common]
            with subprocess.Popen(run, cwd=ROOT, stderr=subprocess.PIPE, text=True) as agent:
                try:
                    await until_told(fleet, 1)
                    await sender.publish(f"edge-fleet/{DEVICE}/wake", b"")
                    while polls(fleet) < 2:  # published before it subscribed for the first time, it would not hear it
                        await asyncio.to_thread(threading.Event().wait, 0.2)
                        await sender.publish(f"edge-fleet/{DEVICE}/wake", b"")
                    await until_told(fleet, 2)
                finally:
                    agent.terminate()
                    said = agent.communicate()[1]
            assert agent.returncode == 0, said
            assert "Traceback" not in said, said

    with FleetController(tmp_path / "controller", FleetRepository(tmp_path / "fleet")).running() as fleet:
        fleet.tokens["t"] = DEVICE
        fleet.poll_s = 600.0
        asyncio.run(run(fleet))
    devices = {call.device for call in fleet.asked if call.path.startswith("/v1/self/")}
    assert devices == {DEVICE}
