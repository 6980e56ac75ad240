"""Rollouts of the programs themselves: controller, agent and installer are real, systemd and the daemon are played."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.assignment import SOFTWARE_SLOT
from gateway.device.agent.settings import InstallerSettings
from gateway.device.domain.software_update import Phase
from gateway.device.installer.places import CURRENT
from tests.contract.fleet.test_fleet_agent import DEVICE, SPEC, Fleet, fleet
from tests.simulators import enrolled_device as enrolled
from tests.simulators.software_device import FIRST, Device, running, socket_activated, wheels

__all__ = ["fleet"]
pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def installer(fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    repository, store = fleet.repository, fleet.device.folder
    made = Device(tmp_path / "played", repository, store=store, steady_s=0.0, idle_s=0.1, check_every_s=0.05)
    settings = InstallerSettings(str(tmp_path / "s"), str(made.records.folder / "update.json"))
    monkeypatch.setattr(enrolled, "CONFIG", replace(enrolled.CONFIG, installer=settings))
    running(FIRST, monkeypatch)
    with socket_activated(made, settings.socket):
        yield made


def begin(fleet: Fleet, folder: Path, version: str, **changes: Any) -> str:
    """Publish a version, and start a rollout of it; its path."""
    target = fleet.repository.add_software([wheels(folder / version, version)])
    fleet.until(lambda: any(one["target"] == target for one in fleet.ask("GET", "/v1/releases")["items"]))
    spec = {
        **SPEC,
        "slot": SOFTWARE_SLOT,
        "name": f"v{version}",
        "target": f"{SOFTWARE_SLOT}/edge-gateway/{version}",
        **changes,
    }
    drafted = fleet.ask("POST", "/v1/rollouts", spec)
    path = f"/v1/rollouts/{drafted['id']}"
    fleet.ask("POST", f"{path}/approve", {"spec": drafted["spec_digest"]})
    fleet.ask("POST", f"{path}/start")
    return path


def test_a_rollout_brings_a_new_version_to_a_device(
    fleet: Fleet, installer: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = begin(fleet, tmp_path, "1.0")

    def turn() -> None:
        fleet.turn()
        running(installer.home.leads_to(CURRENT), monkeypatch)  # as its restart does

    fleet.until(lambda: fleet.ask("GET", path)["state"] == "finished", turn)
    states = [event["state"] for event in fleet.events(path, "reported")]
    assert states[-1] == "committed"
    (runs,) = fleet.ask("GET", f"/v1/devices/{DEVICE}")["running"]
    assert (runs["slot"], runs["target"]) == (SOFTWARE_SLOT, "software/edge-gateway/1.0/release")
    shown = fleet.ask("GET", "/v1/releases/@software/edge-gateway/1.0")
    assert (shown["release"]["owner"], shown["refused"]) == (SOFTWARE_SLOT, "")


def test_a_version_that_is_taken_back_halts_the_rollout_with_the_reason(
    fleet: Fleet, installer: Device, tmp_path: Path
) -> None:
    strict = {"retries": {}, "abort": {"min_sample": 1, "max_failed_percent": 20, "confidence": 0.9}}
    path = begin(fleet, tmp_path, "1.0", **strict)

    def turn() -> None:
        fleet.turn()
        if (found := installer.records.update()) and found.phase is Phase.PROBATION:
            installer.clock[0] += 1000  # without a confirmation: the new agent does not start

    fleet.until(lambda: fleet.ask("GET", path)["state"] in {"aborted", "paused"}, turn)
    (failed,) = [event for event in fleet.events(path, "reported") if event["state"] == "rolled_back"]
    assert "the new agent did not complete a poll" in failed["reason"]
    assert installer.home.leads_to(CURRENT) == FIRST


@pytest.mark.parametrize(
    ("slot", "target"),
    [("meter", "@software/edge-gateway/1.0"), (SOFTWARE_SLOT, "acme/meter/1"), ("@other", "acme/meter/1")],
)
def test_models_and_programs_do_not_take_each_others_slots(
    fleet: Fleet, tmp_path: Path, slot: str, target: str
) -> None:
    fleet.repository.add_software([wheels(tmp_path / "wheels", "1.0")])
    path = fleet.repository.add_release("meter", "1")
    fleet.until(lambda: len(fleet.ask("GET", "/v1/releases")["items"]) == 2)
    answer = fleet.operator.post("/v1/rollouts", json={**SPEC, "name": "v", "slot": slot, "target": target})
    assert answer.status_code == 400, (answer.text, path)
    assert "slot" in answer.text
