"""The programs' own slot: a real agent, a real installer behind its socket; only systemd and the daemon are played."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.problem_types import DEVICE_SUSPENDED
from gateway.common.domain.assignment import SOFTWARE_SLOT, Target
from gateway.common.domain.policy import Policy
from gateway.common.domain.update import Tried
from gateway.device.agent.settings import InstallerSettings
from gateway.device.agent.state.polled import SUSPENDED
from gateway.device.domain.software_update import Choice, Phase, SoftwareUpdate, choose, environment_name
from gateway.device.installer.places import CURRENT
from tests.simulators import enrolled_device as enrolled
from tests.simulators import software_device as installer
from tests.simulators.enrolled_device import DEVICE, Device, enrolled_device
from tests.simulators.fleet_controller import PROBLEM
from tests.simulators.policy_document import policy_bytes
from tests.simulators.software_device import FIRST, running, socket_activated, wheels

pytestmark = pytest.mark.timeout(120)


class Both:
    """A device and its installer. `runs(NAME)`: the agent is of this environment from now on."""

    def __init__(self, device: Device, played: installer.Device, patch: pytest.MonkeyPatch) -> None:
        self.device, self.installer, self._patch = device, played, patch

    def publish(self, folder: Path, version: str, floor: str | None = None) -> str:
        return self.device.fleet.repository.add_software([wheels(folder / version, version)], floor)

    def assign(self, path: str, attempt: int) -> None:
        self.device.fleet.assigned[DEVICE] = ({SOFTWARE_SLOT: path}, ())
        self.device.fleet.extra[DEVICE] = {"attempts": {SOFTWARE_SLOT: attempt}}

    def runs(self, name: str) -> None:
        running(name, self._patch)

    def told(self) -> dict[str, Any]:
        """Return the last report of the slot to the fleet."""
        assert self.device.report() == ""
        rows = [row["document"] for row in self.device.told.of("state") if row["kind"] == "slot"]
        found: dict[str, Any] = rows[-1]
        return found


@pytest.fixture
def both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    with enrolled_device(tmp_path, monkeypatch) as device:
        played = installer.Device(
            tmp_path / "played",
            device.fleet.repository,
            store=device.folder,
            steady_s=0.0,
            idle_s=0.1,
            check_every_s=0.05,
        )
        settings = InstallerSettings(str(tmp_path / "s"), str(played.records.folder / "update.json"))
        monkeypatch.setattr(enrolled, "CONFIG", replace(enrolled.CONFIG, installer=settings))
        made = Both(device, played, monkeypatch)
        made.runs(FIRST)
        with socket_activated(played, settings.socket):
            yield made


def test_a_version_is_fetched_installed_and_told_of_like_any_slot(both: Both, tmp_path: Path) -> None:
    path = both.publish(tmp_path, "1.0")
    both.assign(path, 1)
    both.device.sync()
    told = both.told()
    assert (told["slot"], told["state"], told["attempt"], told["committed"]) == (SOFTWARE_SLOT, "probation", 1, None)
    both.runs(both.installer.home.leads_to(CURRENT))
    both.device.sync()
    told = both.told()
    assert (told["state"], told["committed"]["target"], told["target"]) == ("committed", path, path)
    assert both.device.status["state"] == "in-step"
    assert both.installer.home.leads_to(CURRENT) == environment_name("1.0", told["release"])
    asked = both.installer.records.update()
    both.device.sync()
    assert both.installer.records.update() == asked
    assert not list((both.device.folder / "blobs/sha256").glob("*.part"))


def test_what_was_rolled_back_is_told_with_its_reason_and_tried_again_at_a_greater_attempt(
    both: Both, tmp_path: Path
) -> None:
    both.assign(both.publish(tmp_path, "1.0"), 1)
    both.device.sync()
    both.installer.clock[0] += 1000
    ended(both, Phase.ROLLED_BACK)
    both.device.sync()
    told = both.told()
    assert (told["state"], told["attempt"]) == ("rolled_back", 1)
    assert "the new agent did not complete a poll" in told["rejected"]
    assert both.device.status["state"] == "behind"
    assert len(both.installer.units.restarts) == 2
    both.device.sync()
    assert len(both.installer.units.restarts) == 2
    both.assign(both.device.fleet.assigned[DEVICE][0][SOFTWARE_SLOT], 2)
    both.device.sync()
    assert both.told()["state"] == "probation"
    assert len(both.installer.units.restarts) == 3


def test_a_device_that_is_suspended_on_probation_keeps_the_new_version(both: Both, tmp_path: Path) -> None:
    both.assign(both.publish(tmp_path, "1.0"), 1)
    both.device.sync()
    new = both.installer.home.leads_to(CURRENT)
    both.runs(new)
    problem = json.dumps({"type": DEVICE_SUSPENDED.uri, "status": 403}).encode()
    both.device.fleet.ill["/v1/self/assignment"] = lambda _: (403, PROBLEM, problem)
    assert both.device.asked_once().reason == SUSPENDED
    both.installer.clock[0] += 1000
    ended(both, Phase.DONE)
    assert both.installer.home.leads_to(CURRENT) == new != FIRST
    both.device.fleet.ill.clear()
    both.device.sync()
    assert both.told()["state"] == "committed"


def test_a_version_that_an_operator_replaced_is_told_and_not_put_back(both: Both, tmp_path: Path) -> None:
    both.assign(both.publish(tmp_path, "1.0"), 1)
    both.device.sync()
    both.runs(both.installer.home.leads_to(CURRENT))
    both.device.sync()
    assert both.told()["state"] == "committed"
    both.runs(FIRST)
    both.device.sync()
    told = both.told()
    assert (told["state"], told["committed"]) == ("rolled_back", None)
    assert "by hand" in told["rejected"]
    assert len(both.installer.units.restarts) == 1


def test_another_assignment_gives_up_what_is_under_way(both: Both, tmp_path: Path) -> None:
    first, second = both.publish(tmp_path, "1.0"), both.publish(tmp_path, "2.0")
    both.assign(first, 1)
    both.device.sync()
    both.assign(second, 1)
    both.device.sync()  # gives it up
    ended(both, Phase.ROLLED_BACK)
    both.device.sync()
    told = both.told()
    assert (told["target"], told["state"]) == (second, "probation")


def test_without_a_root_of_trust_the_fleet_is_told_so(both: Both, tmp_path: Path) -> None:
    (both.installer.records.folder / "root.json").unlink()
    both.assign(both.publish(tmp_path, "1.0"), 1)
    both.device.sync()
    told = both.told()
    assert told["state"] == "rolled_back"
    assert "edge-software trust" in told["rejected"]


def test_an_installer_that_is_away_is_waited_for(both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    away = replace(enrolled.CONFIG.installer, socket=str(tmp_path / "away"))
    monkeypatch.setattr(enrolled, "CONFIG", replace(enrolled.CONFIG, installer=away))
    both.assign(both.publish(tmp_path, "1.0"), 1)
    both.device.sync()
    told = both.told()
    assert told["state"] == "downloading"
    assert "edge-software.socket" in told["waits_for"]


def test_below_the_floor_nothing_is_begun(both: Both, tmp_path: Path) -> None:
    first = both.publish(tmp_path, "1.0")
    both.publish(tmp_path, "2.0", floor="2.0")
    both.assign(first, 1)
    polled = both.device.asked_once()
    assert "2.0 and newer versions" in polled.problem
    assert both.installer.records.update() is None


def test_a_signed_policy_holds_a_version_as_it_holds_a_model(both: Both, tmp_path: Path) -> None:
    """A stolen director can thus not bring a version that the software keys signed to all devices at once."""
    repository, path = both.device.fleet.repository, both.publish(tmp_path, "1.0")
    slow = Policy(share_percent_per_hour=0.1, profiles=("another",), profile_delay_h=2.0)
    policy = repository.add_file("policy/night.json", policy_bytes(slow))
    both.device.fleet.assigned[DEVICE] = ({SOFTWARE_SLOT: path}, (policy,))
    both.device.sync()
    assert both.told()["held"]["change"] == "install"
    assert both.installer.records.update() is None
    repository.add_file(policy, policy_bytes(Policy()))
    both.device.sync()
    assert both.told()["state"] == "probation"


def test_the_daemon_never_hears_of_the_slot(both: Both, tmp_path: Path) -> None:
    both.assign(both.publish(tmp_path, "1.0"), 1)
    both.device.sync()
    both.runs(both.installer.home.leads_to(CURRENT))
    both.device.sync()
    both.told()
    for method in ("plan", "load", "statistics", "route", "unload"):
        assert not [call for call in both.device.control.named(method) if SOFTWARE_SLOT in str(call)]


def ended(both: Both, phase: Phase) -> None:
    waiting = threading.Event()
    while (found := both.installer.records.update()) is None or found.phase is not phase:
        waiting.wait(0.02)


# ---- the decision ---------------------------------------------------------------------------------------------------

TARGET = Target("software/edge-gateway/1.0/release", 10, "a" * 64)
OTHER = Target("software/edge-gateway/2.0/release", 10, "b" * 64)
RECORD = SoftwareUpdate(TARGET.path, "1.0", "1.0", TARGET.sha256, "1.0-aaaaaaaa", phase=Phase.PROBATION)


@pytest.mark.parametrize(
    ("assigned", "attempt", "running", "record", "tried", "choice"),
    [
        (None, 0, FIRST, None, None, Choice.NOTHING),
        (TARGET, 0, FIRST, None, None, Choice.INSTALL),
        (TARGET, 1, "1.0-aaaaaaaa", None, None, Choice.NOTHING),
        (TARGET, 1, FIRST, RECORD, None, Choice.NOTHING),
        (OTHER, 1, FIRST, RECORD, None, Choice.GIVE_UP),
        (None, 1, FIRST, RECORD, None, Choice.GIVE_UP),
        (OTHER, 1, FIRST, replace(RECORD, phase=Phase.COMMIT), None, Choice.NOTHING),
        (TARGET, 1, FIRST, replace(RECORD, phase=Phase.ROLLED_BACK), Tried(TARGET.sha256, 1), Choice.NOTHING),
        (TARGET, 2, FIRST, replace(RECORD, phase=Phase.ROLLED_BACK), Tried(TARGET.sha256, 1), Choice.INSTALL),
        (TARGET, 1, FIRST, replace(RECORD, phase=Phase.DONE), Tried(TARGET.sha256, 1), Choice.NOTHING),
        (OTHER, 1, FIRST, replace(RECORD, phase=Phase.DONE), Tried(TARGET.sha256, 1), Choice.INSTALL),
    ],
)
def test_what_is_done(
    assigned: Target | None,
    attempt: int,
    running: str,
    record: SoftwareUpdate | None,
    *,
    tried: Tried | None,
    choice: Choice,
) -> None:
    assert choose(assigned, attempt, running, record, tried) is choice
