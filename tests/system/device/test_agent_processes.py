"""Processes that are not there, are there twice, or end in the middle: the daemon, the agent, and both."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gateway.common.domain.policy import Policy
from gateway.device.agent import events
from tests.simulators.constants import command
from tests.simulators.daemon import ROOT, WAIT_S
from tests.simulators.fleet_device import SETTINGS, SLOT, FleetDevice, device
from tests.simulators.policy_document import policy_bytes

__all__ = ["device"]
SLOWLY = {**SETTINGS["probation"], "duration_s": 60.0}


@pytest.fixture(autouse=True)
def settings(device: FleetDevice) -> None:
    device.configure()


def test_a_second_agent_leaves_the_first_alone(device: FleetDevice) -> None:
    device.configure(probation=SLOWLY)
    device.assign(device.publish())
    with device.hammered(), device.started("sync") as first:
        device.wait_for_share(first)
        for verb, *arguments in (("sync", "--json"), ("rollback", SLOT)):
            second = device.agent(verb, *arguments)
            assert (second.code, second.out) == (3, "")
            assert "another edge-agent uses this folder" in second.err
        assert device.status["state"] == "updating"  # may be asked at any time
        assert first.poll() is None
    device.configure()
    assert device.sync().code == 0
    assert device.serving == {str(device.newest): 100}


def test_without_a_daemon_the_agent_says_what_to_do(device: FleetDevice) -> None:
    before = device.serving
    device.assign(device.publish())
    device.daemon.stop()
    done = device.sync()
    assert done.code == 3
    assert "is edge-gateway.service running" in done.err
    assert str(device.socket) in done.err
    assert done.told["slots"][SLOT]["committed"]["version"] in before
    device.daemon.start()
    with device.hammered():
        assert device.serving == before
        assert device.sync().code == 0
    assert device.serving == {str(device.newest): 100}


def test_a_daemon_killed_during_probation_rolls_back(device: FleetDevice) -> None:
    before = device.serving
    device.configure(probation=SLOWLY)
    device.assign(device.publish())
    with device.started("sync", "--json") as agent:
        device.wait_for_share(agent)
        device.daemon.kill()
        device.daemon.start()
        assert device.serving == before  # by itself, without the agent
        out, err = agent.communicate(timeout=WAIT_S)
    assert agent.returncode == 1, err
    assert "the daemon" in out
    update = device.status["history"][0]
    assert (update["state"], update["failure"]["step"]) == ("rolled_back", "probation")
    with device.hammered():
        assert device.serving == before


def test_an_agent_killed_during_probation_leaves_the_traffic_to_what_is_committed(device: FleetDevice) -> None:
    """The share is a lease, and it is not renewed."""
    before = device.serving
    device.configure(probation=SLOWLY)
    device.assign(device.publish())
    with device.hammered(), device.started("sync") as agent:
        device.wait_for_share(agent)
        agent.kill()
        agent.wait()
        deadline = time.monotonic() + WAIT_S
        while device.serving != before:
            assert time.monotonic() < deadline, device.serving
    assert device.status["state"] == "updating"
    device.configure()
    with device.hammered():
        assert device.sync().code == 0
    assert device.serving == {str(device.newest): 100}


OFTEN = {"probation", "commit"}
STEPS = ("fetch", "load", "shift", "probation", "take-over", "commit", "retire")


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step in OFTEN else pytest.mark.long) for step in STEPS]
)
def test_an_agent_killed_in_any_step_goes_on_to_the_end(device: FleetDevice, step: str) -> None:
    """Even steps are killed in the middle of the journal's transaction, odd ones once it is recorded."""
    old = device.serving
    device.assign(device.publish())
    calls = (3, 25)[STEPS.index(step) % 2]
    with device.hammered():
        program = command((sys.executable, "-m", "tests.simulators.killed_agent"), device.fixed)
        words = [*program, step, str(calls), "--", *device.command("sync")[3:]]
        killed = subprocess.run(words, cwd=ROOT, capture_output=True, check=False)
        assert killed.returncode == 0, killed.stderr
        assert device.agent("verify").code == 0
        assert set(device.serving) <= {*old, str(device.newest)}
        done = device.sync()
    assert (done.code, device.serving) == (0, {str(device.newest): 100}), done.err
    if step not in {"commit", "retire"}:  # nothing of the probation that was cut short counts
        assert '"step": "probation"' in done.err


def test_a_slot_that_is_ordered_to_be_emptied(device: FleetDevice) -> None:
    free = Policy(removal_hold_h=0.0, removal_share_percent_per_hour=100.0, removal_of_last=True)
    policy = device.repository.add_file("policy/free.json", policy_bytes(free))
    device.assign(None, files=[policy], extra={"removed": [SLOT]})
    done = device.sync()
    assert (done.code, done.told["slots"]) == (0, {})
    assert device.serving == {}
    assert not list((device.store / "releases").iterdir())
    device.assign(device.publish())
    assert device.sync().code == 0
    assert device.serving == {str(device.newest): 100}


def running(device: FleetDevice) -> subprocess.Popen[bytes]:
    """Start `edge-agent run`, its log in a file."""
    with (device.folder / "agent.log").open("ab") as log:
        return subprocess.Popen(device.command("run"), stdout=log, stderr=log)


def wait_log(device: FleetDevice, text: str, count: int = 1) -> None:
    """Wait until the log has it so many times."""
    deadline = time.monotonic() + WAIT_S
    file = device.folder / "agent.log"
    while file.read_text().count(text) < count:
        assert time.monotonic() < deadline, file.read_text()
        time.sleep(0.02)


def test_run_keeps_in_step_wakes_by_sighup_and_stops_by_sigterm(device: FleetDevice) -> None:
    log = device.folder / "agent.log"
    log.unlink(missing_ok=True)
    with device.hammered(), running(device) as agent:
        try:
            wait_log(device, events.POLL_SCHEDULED)
            device.assign(device.publish())
            agent.send_signal(signal.SIGHUP)
            wait_log(device, '"outcome": "done"')
            assert device.serving == {str(device.newest): 100}
            wait_log(device, events.POLL_SCHEDULED, 2)
            resident = resident_bytes(agent.pid)
            print(f"\nedge-agent run sleeps in {resident / 2**20:.1f} MiB (RSS)")
            assert resident < 45e6
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(WAIT_S) == 0
        finally:
            agent.kill()
    assert "Traceback" not in log.read_text(), log.read_text()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def test_run_finishes_a_probation_that_lasts_longer_than_its_polls_are_apart(device: FleetDevice) -> None:
    log = device.folder / "agent.log"
    log.unlink(missing_ok=True)
    device.configure(agent={"poll_s": 0.5, "jitter_percent": 0.0}, probation={**SLOWLY, "duration_s": 2.0})
    device.assign(device.publish())
    with running(device) as agent:
        try:
            wait_log(device, '"outcome": "done"')
            assert log.read_text().count('"step": "probation"') == 1
            assert log.read_text().count(events.POLL_COMPLETED) >= 3
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(WAIT_S) == 0
        finally:
            agent.kill()
    assert device.serving == {str(device.newest): 100}


@pytest.mark.long
def test_run_stopped_during_a_probation_goes_on_later(device: FleetDevice) -> None:
    log = device.folder / "agent.log"
    log.unlink(missing_ok=True)
    device.configure(probation=SLOWLY)
    device.assign(device.publish())
    with running(device) as agent:
        try:
            wait_log(device, '"step": "probation"')
            agent.send_signal(signal.SIGTERM)
            assert agent.wait(WAIT_S) == 0
        finally:
            agent.kill()
    assert device.status["state"] == "updating"
    device.configure()
    assert device.sync().code == 0
    assert device.serving == {str(device.newest): 100}


@pytest.mark.long
def test_run_waits_for_an_agent_that_somebody_started_by_hand(device: FleetDevice) -> None:
    log = device.folder / "agent.log"
    log.unlink(missing_ok=True)
    device.configure(probation=SLOWLY, agent={"retry_s": 0.2})
    device.assign(device.publish())
    with device.started("sync") as by_hand:
        device.wait_for_share(by_hand)
        with running(device) as agent:
            try:
                wait_log(device, "another edge-agent uses this folder")
                by_hand.kill()
                by_hand.wait()
                wait_log(device, '"step": "probation"')
                agent.send_signal(signal.SIGTERM)
                assert agent.wait(WAIT_S) == 0
            finally:
                agent.kill()
    device.configure()
    assert device.sync().code == 0
