"""Turns of `edge-agent run`: how long it sleeps after each, and what it does where it cannot work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.problem_types import DEVICE_SUSPENDED
from gateway.common.domain.probation import ProbationSettings
from gateway.common.store.settings import StoreSettings
from gateway.common.transfer.settings import FetchSettings
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.cycle import run_cycle
from gateway.device.agent.loop import FAILED
from gateway.device.agent.settings import AgentSettings
from gateway.device.agent.state.identity import DeviceIdentity, bootstrap
from gateway.device.agent.state.polled import POLLED
from gateway.device.agent.state.storage import opened
from gateway.device.agent.update import work
from tests.simulators.agent_control import SimulatedControl
from tests.simulators.bad_server import answer
from tests.simulators.constants import settings_with
from tests.simulators.daemon import ROOT
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.fleet_server import FleetServer

DEVICE, SLOT = "door-1", "meter"
CONFIG = AgentConfig(
    agent=settings_with(AgentSettings(poll_s=900.0, retry_s=60.0, drain_s=0.0), jitter_percent=0.0),
    fetch=settings_with(FetchSettings(document_deadline_s=2.0, read_timeout_s=1.0, connect_timeout_s=1.0), attempts=1),
    probation=settings_with(ProbationSettings(duration_s=0.0), snapshot_every_s=0.01),
    store=StoreSettings(keep_free_bytes=0),
)


@pytest.fixture(autouse=True)
def control(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedControl]:
    """Yield the daemon; signal handlers are put back afterwards."""
    made = SimulatedControl()
    monkeypatch.setattr(work, "DaemonClient", lambda _settings: made)
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield made
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FleetServer]:
    """Yield a repository that assigns version 1, and a bootstrapped device in `store`."""
    repository = FleetRepository(tmp_path / "fleet")
    repository.assign(DEVICE, {SLOT: repository.add_release(SLOT, "1")}, poll_s=30.0)
    with FleetServer(repository).running() as made:
        urls = f'"repository": "{made.url}", "assignment": "{made.url}assignments/{DEVICE}.json"'
        document = f'{{"schema": 1, "device": "{DEVICE}", {urls}}}'.encode()
        identity = DeviceIdentity(
            DEVICE, made.url, f"{made.url}assignments/{DEVICE}.json", repository.root_bytes(1), document
        )
        bootstrap(identity, tmp_path / "store")
        yield made


def take_turn(folder: Path, failures: int = 0, config: AgentConfig = CONFIG) -> tuple[float, bool]:
    turned = run_cycle(folder, config, failures, 0.5)
    assert turned
    return turned.pause_s, turned.failed


def test_a_turn_works_to_the_end_and_sleeps_as_long_as_the_fleet_says(server: FleetServer, tmp_path: Path) -> None:
    pause_s, failed = take_turn(tmp_path / "store")
    assert (25.0 < pause_s <= 30.0, failed) == (True, False)
    with opened(tmp_path / "store", CONFIG) as storage:
        assert storage.active().slots[SLOT].version == "1"


def test_failures_in_a_row_are_asked_after_at_growing_distances(server: FleetServer, tmp_path: Path) -> None:
    server.ill = {"": lambda exchange: None}
    pauses = [take_turn(tmp_path / "store", failures)[0] for failures in (0, 1, 2, 9)]
    assert [round(pause / 10) * 10 for pause in pauses] == [60, 120, 240, 900]


def test_a_suspended_device_polls_at_the_interval_of_its_fleet(server: FleetServer, tmp_path: Path) -> None:
    body = json.dumps({"type": DEVICE_SUSPENDED.uri, "status": 403}).encode()
    refusal = answer("403 Forbidden", "Content-Type: application/problem+json", body=body)
    server.ill = {"assignments/": refusal}
    for failures in (0, 5):
        pause_s, failed = take_turn(tmp_path / "store", failures)
        assert (round(pause_s / 10) * 10, failed) == (CONFIG.agent.poll_s, False)
    with opened(tmp_path / "store", CONFIG) as storage:
        assert json.loads(storage.journal.fact(POLLED) or "")["reason"] == "suspended"


def test_no_server_sends_a_device_to_sleep_for_years(server: FleetServer, tmp_path: Path) -> None:
    server.ill = {"": answer("429 Too Many", f"Retry-After: {10**17}")}
    assert take_turn(tmp_path / "store") == (pytest.approx(CONFIG.fetch.retry_after_limit_s, abs=1), True)


def test_an_update_that_waits_is_tried_again_before_the_next_question_is_due(
    server: FleetServer, tmp_path: Path, control: SimulatedControl
) -> None:
    server.ill = {"blobs/": lambda exchange: None}
    config = replace(CONFIG, agent=replace(CONFIG.agent, retry_s=5.0))
    assert take_turn(tmp_path / "store", config=config)[0] <= 5.0


def test_an_agent_that_somebody_runs_by_hand_is_waited_for(server: FleetServer, tmp_path: Path) -> None:
    with opened(tmp_path / "store", CONFIG):
        assert take_turn(tmp_path / "store") == (60.0, True)


def test_a_store_that_cannot_be_used_ends_the_agent(server: FleetServer, tmp_path: Path) -> None:
    (tmp_path / "store" / "journal.sqlite").write_bytes(b"no journal")
    assert run_cycle(tmp_path / "store", CONFIG, 0, 0.5) is None
    command = [sys.executable, "-m", "gateway.device.agent", "run", "--state", str(tmp_path / "store")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "cycle failed" in done.stderr) == (FAILED, True), done.stderr
