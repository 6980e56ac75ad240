"""Settings of the fleet on a whole device: good ones stay, with bad ones everything is as it was before."""

from __future__ import annotations

import json
import signal
import threading
from contextlib import suppress

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from gateway.common.domain.errors import UnreachableError
from tests.simulators.daemon import WAIT_S, golden
from tests.simulators.fleet_device import SLOT
from tests.simulators.operator import until
from tests.simulators.settled_device import GOOD, TIMES, Settled, device, instance

__all__ = ("device",)
pytestmark = pytest.mark.timeout(240)

STARVED = '[[limits.quota]]\ncaller = "*"\nrequests_per_s = 0.01\n'
UNSTARTABLE = '[shared_memory]\nallowed = true\nsocket = "/no/such/folder/memory.sock"\n'
PERMITTED = {"schema": 1, "settings": ["shared_memory"]}


def ask_until(address: str, stopped: threading.Event) -> None:
    """Send requests, whatever becomes of them."""
    wanted = golden(SLOT, 1)
    tensor = triton.InferInput(wanted.name, list(wanted.rows.shape), "FP32")
    tensor.set_data_from_numpy(wanted.rows)
    with triton.InferenceServerClient(address) as client:
        while not stopped.wait(0.005):
            with suppress(InferenceServerException):
                client.infer(SLOT, [tensor])


def test_good_settings_are_committed_and_outlive_restarts(device: Settled) -> None:
    before, pid = instance(device), device.daemon.pid
    assert not device.refuses_json
    done = device.send(GOOD)
    assert (done.code, done.told["state"]) == (0, "in-step"), done.err
    assert device.slot["committed"]["target"] == "settings/berlin/1/release"
    assert (instance(device) != before, device.daemon.pid) == (True, pid)
    assert device.refuses_json
    assert device.daemon.stop() == 0
    device.daemon.start()
    assert device.refuses_json
    shown = device.control.settings()
    assert (shown["target"], shown["trial_ends_in_s"], shown["problem"]) == ("settings/berlin/1/release", None, "")
    same = instance(device)
    assert device.sync().code == 0
    assert instance(device) == same


def test_empty_settings_take_earlier_ones_away(device: Settled) -> None:
    device.send(GOOD)
    assert device.send("").code == 0
    assert not device.refuses_json


MISFITS = {
    '[mqtt]\nurl = "mqtt://127.0.0.1:1"\n': "no policy of this device permits",
    "[fleet]\nunsigned = false\n": "no policy of this device permits",
    "[limits]\ndrain_s = -1\n": "@settings/berlin/3:2: limits.drain_s",
    "[limits]\nno_such = 1\n": "limits.no_such",
}
"""Settings that are refused, with the reason."""


def test_what_does_not_fit_is_refused_before_a_restart(device: Settled) -> None:
    before = instance(device)
    for toml, why in MISFITS.items():
        done = device.send(toml)
        assert (done.code, done.told["state"]) == (1, "behind"), done.err
        assert why in device.slot["rejected"]
    assert instance(device) == before


def test_settings_that_nothing_starts_with_are_taken_back(device: Settled) -> None:
    policy = device.repository.add_file("policy/site.json", json.dumps(PERMITTED).encode())
    device.send(GOOD, (policy,))
    done = device.send(UNSTARTABLE, (policy,))
    assert (done.code, done.told["state"]) == (1, "behind"), done.err
    assert "/no/such/folder" in device.slot["rejected"]
    assert device.slot["committed"]["target"] == "settings/berlin/1/release"
    assert device.refuses_json
    same = instance(device)
    device.sync()
    assert instance(device) == same  # it is not tried again


def test_settings_that_starve_callers_are_taken_back(device: Settled) -> None:
    device.configure(settings={**TIMES, "duration_s": 60.0})
    device.offer(STARVED)
    stopped = threading.Event()
    thread = threading.Thread(target=ask_until, args=(device.daemon.grpc, stopped))
    thread.start()
    try:
        done = device.sync()
    finally:
        stopped.set()
        thread.join(WAIT_S)
    assert (done.code, done.told["state"]) == (1, "behind"), done.err
    assert "requests failed; before them 0.0 %" in device.slot["rejected"]
    for _ in ("on trial", "taken back"):
        device.daemon.wait("READY=1")
    with device.hammered():
        pass


def test_a_killed_daemon_comes_back_with_what_is_committed(device: Settled) -> None:
    device.configure(settings={**TIMES, "duration_s": 60.0})
    device.offer(GOOD)
    with device.started("sync") as agent:
        device.daemon.wait_logged("trial of the fleet's settings", timeout_s=WAIT_S)
        device.daemon.wait("READY=1")
        device.daemon.kill()
        device.daemon.start()
        assert not device.refuses_json
        assert agent.wait(WAIT_S) == 1
    assert "ended during the trial" in device.slot["rejected"]


def test_a_trial_without_its_agent_ends_by_itself(device: Settled) -> None:
    device.configure(settings={"duration_s": 1.0, "ready_s": 1.0, "snapshot_every_s": 0.1, "spare_s": 1.0})
    device.offer(GOOD)
    with device.started("sync") as agent:
        device.daemon.wait("RELOADING=1")
        agent.send_signal(signal.SIGKILL)
    device.daemon.wait_logged("they were not confirmed in time")

    def is_back() -> bool:  # a busy machine may take them back before they were ready: READY is heard once or twice
        with suppress(UnreachableError):
            return device.control.settings()["trial_ends_in_s"] is None
        return False

    until(is_back, "the gateway does not come back")
    assert not device.refuses_json
    assert device.control.settings()["reason"] == "they were not confirmed in time"


def test_a_killed_agent_goes_on_where_it_was(device: Settled) -> None:
    device.configure(settings={**TIMES, "duration_s": 2.0})
    device.offer(GOOD)
    with device.started("sync") as agent:
        device.daemon.wait("RELOADING=1")
        agent.send_signal(signal.SIGKILL)
    device.daemon.wait("READY=1")
    done = device.sync()
    assert (done.code, done.told["state"]) == (0, "in-step"), done.err
    assert device.refuses_json


def test_a_device_may_switch_them_off(device: Settled) -> None:
    device.send(GOOD)
    config = device.daemon.config_file
    config.write_text(config.read_text().replace("[fleet]\n", "[fleet]\nsettings = false\n"))
    assert device.daemon.stop() == 0
    device.daemon.start()
    assert not device.refuses_json
    device.send("[http]\nmax_json_bytes = 999\n")
    assert "this device takes no settings from its fleet" in device.slot["rejected"]
