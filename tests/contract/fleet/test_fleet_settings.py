"""Rollouts of settings for devices: the controller is real, its devices are those of `tests.load`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from gateway.common.domain.assignment import SETTINGS_SLOT
from gateway.common.trust.targets import Withdrawal
from tests.load.settings import BehaviourShares, Settings
from tests.load.simulate import Run, simulate
from tests.simulators.controller import SOON, RunningController, controlling
from tests.simulators.operator import until

pytestmark = pytest.mark.timeout(120)
DEVICE = "sim-000001"
SPEC: dict[str, Any] = {
    "query": "all",
    "slot": SETTINGS_SLOT,
    "canary": {},
    "waves": [{"percent": 100}],
    "soak_s": 0,
    "success": {"min_sample": 1, "min_percent": 100},
    "abort": {"min_sample": 1, "max_failed_percent": 20, "confidence": 0.9},
    "silence_s": 600,
    "deadline_s": 600,
}


class Fleet:
    """An operator and a controller, with one simulated device at a time."""

    def __init__(self, controller: RunningController, operator: httpx.Client) -> None:
        self.controller, self.operator = controller, operator

    def ask(self, method: str, path: str, body: object = None, **query: str) -> Any:
        answer = self.operator.request(method, path, json=body, params=query or None)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def publish(self, text: str) -> str:
        """Publish settings of the name `berlin`. Return their path once the controller knows them."""
        target = self.controller.repository.add_settings("berlin", text)
        until(
            lambda: any(one["target"] == target for one in self.ask("GET", "/v1/releases")["items"]),
            "the release is not known",
        )
        return target

    def begin(self, version: str, **changes: Any) -> str:
        """Start a rollout. Return its path."""
        spec = {**SPEC, "name": f"v{version}", "target": f"{SETTINGS_SLOT}/berlin/{version}", **changes}
        drafted = self.ask("POST", "/v1/rollouts", spec)
        path = f"/v1/rollouts/{drafted['id']}"
        self.ask("POST", f"{path}/approve", {"spec": drafted["spec_digest"]})
        self.ask("POST", f"{path}/start")
        return path

    def ended(self, path: str) -> str:
        """Return how a rollout ended."""
        until(lambda: self.ask("GET", path)["state"] in {"finished", "aborted", "paused"}, "the rollout does not end")
        return str(self.ask("GET", path)["state"])

    def reported(self, path: str) -> list[dict[str, Any]]:
        facts = [fact["event"] for fact in self.ask("GET", f"{path}/facts")["items"]]
        return [event for event in facts if event["kind"] == "reported"]

    @contextmanager
    def device(self, shares: BehaviourShares | None = None) -> Iterator[None]:
        """Run a device, enrolled, until the block ends."""
        token = self.ask("POST", "/v1/enrolments", {"device": DEVICE})["token"]
        settings = Settings(self.controller.url, 1, shares=shares or BehaviourShares(), poll_s=0.1, retry_s=0.1)
        authority = self.controller.ca_file.read_text()
        run, over = Run(settings, tokens=[token], authority=authority), Event()
        found: dict[str, Any] = {}
        thread = Thread(target=lambda: found.update(asyncio.run(_played(run, over))))
        thread.start()
        try:
            until(
                lambda: any(one["id"] == DEVICE for one in self.ask("GET", "/v1/devices")["items"]),
                "the device does not enrol",
            )
            yield
        finally:
            over.set()
            thread.join()
        assert found["problems"] == {}


async def _played(run: Run, over: Event) -> dict[str, Any]:
    task = asyncio.create_task(simulate(run))
    await asyncio.to_thread(over.wait)
    task.cancel()  # it ends as if its time were over
    return await task


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with controlling(tmp_path / "fleet", SOON) as controller, controller.client() as operator:
        yield Fleet(controller, operator)


def test_a_rollout_brings_settings_to_a_device(fleet: Fleet) -> None:
    target = fleet.publish("[mqtt]\nkeepalive_s = 10\n")
    with fleet.device():
        path = fleet.begin("1")
        assert fleet.ended(path) == "finished"
    assert fleet.reported(path)[-1]["state"] == "committed"
    (runs,) = fleet.ask("GET", f"/v1/devices/{DEVICE}")["running"]
    assert (runs["slot"], runs["target"], runs["state"]) == (SETTINGS_SLOT, target, "committed")
    assert [one["id"] for one in fleet.ask("GET", "/v1/devices", target=target)["items"]] == [DEVICE]
    shown = fleet.ask("GET", f"/v1/releases/{SETTINGS_SLOT}/berlin/1")
    assert (shown["release"]["owner"], shown["release"]["model"], shown["refused"]) == (SETTINGS_SLOT, "berlin", "")
    assert shown["document"]["toml"] == "[mqtt]\nkeepalive_s = 10\n"
    preview = fleet.ask("POST", "/v1/rollouts/preview", {**SPEC, "name": "v1", "target": f"{SETTINGS_SLOT}/berlin/1"})
    assert preview["running"] == {"1": 1}


def test_settings_that_are_taken_back_halt_the_rollout_with_the_reason(fleet: Fleet) -> None:
    fleet.publish("[mqtt]\nkeepalive_s = 10\n")
    with fleet.device(BehaviourShares(failing=100)):
        path = fleet.begin("1")
        assert fleet.ended(path) == "paused"
    assert fleet.ask("GET", path)["halted"]
    (failed,) = [event for event in fleet.reported(path) if event["state"] == "rolled_back"]
    assert failed["reason"]


def test_withdrawn_settings_are_not_rolled_out(fleet: Fleet) -> None:
    target = fleet.publish("")
    fleet.controller.repository.withdraw_path(target, Withdrawal.OFFER)
    until(lambda: fleet.ask("GET", f"/v1/releases/{SETTINGS_SLOT}/berlin/1")["refused"] != "", "it is not refused")
    answer = fleet.operator.post("/v1/rollouts", json={**SPEC, "name": "v1", "target": target})
    assert (answer.status_code, "withdrawn" in answer.text) == (409, True), answer.text


@pytest.mark.parametrize(
    ("slot", "target"),
    [
        ("meter", f"{SETTINGS_SLOT}/berlin/1"),
        ("@software", f"{SETTINGS_SLOT}/berlin/1"),
        (SETTINGS_SLOT, "acme/meter/1"),
    ],
)
def test_settings_and_others_do_not_take_each_others_slots(fleet: Fleet, slot: str, target: str) -> None:
    fleet.controller.repository.add_release("meter", "1")
    fleet.publish("")
    answer = fleet.operator.post("/v1/rollouts", json={**SPEC, "name": "v", "slot": slot, "target": target})
    assert answer.status_code == 400, answer.text
    assert "@settings holds settings" in answer.text
