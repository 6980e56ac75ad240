"""Devices are woken over a real broker, and all goes on where there is none."""

from __future__ import annotations

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import which

import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.control.wake_hints import Hints
from fleet.controller.monitoring.settings import WakeBrokerSettings
from fleet.controller.monitoring.wake_hints import WakePublisher, broker
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.broker import Mosquitto, free_port
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController, controlling
from tests.simulators.fleet_repository import FleetRepository
from tests.simulators.rolled_fleet import document
from tests.simulators.served_fleet import roll_out, wait_until

SUBSCRIBER = which("mosquitto_sub") or "mosquitto_sub"
DEVICES = ("camera-1", "camera-2")


@contextmanager
def steering(folder: Path, url: str) -> Iterator[RunningController]:
    """Yield a controller with a release to roll out and two devices."""
    repository = FleetRepository(folder / "publisher")
    repository.add_owner("acme")
    repository.add_release("meter-reader", "1")
    wake = settings_with(WakeBrokerSettings(url), retry_limit_s=1.0)
    config = replace(FleetConfig(), wake=wake, scheduler=SchedulerSettings(tick_s=0.2))
    with controlling(folder / "publisher", config, repository) as controller:
        for name in DEVICES:
            controller.enrolled(name)
        yield controller


def roll_out_at_once(controller: RunningController) -> None:
    """Roll out to all devices, when the leader has read the releases."""
    with controller.client() as operator:
        wait_until(lambda: operator.get("/v1/releases").json()["items"], 30)
        roll_out(operator, document(target="acme/meter-reader/1", waves=[{"percent": 100}]))


@contextmanager
def heard(port: int, count: int) -> Iterator[list[str]]:
    """Yield a list that holds the topics of the next messages, once the block ends."""
    topics: list[str] = []
    words = [
        "/usr/bin/stdbuf",
        "-oL",
        SUBSCRIBER,
        "-p",
        str(port),
        "-t",
        "edge-fleet/#",
        "-C",
        str(count),
        "-W",
        "30",
        "-F",
        "%t %l",
        "-d",
    ]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as listening:
        assert listening.stdout
        while "SUBACK" not in listening.stdout.readline():
            pass
        yield topics
        said = listening.stdout.read().splitlines()
        topics += [line for line in said if line.startswith("edge-fleet/")]
    assert listening.returncode == 0, (topics, said)


@pytest.mark.asyncio
async def test_who_is_offered_something_or_asked_is_woken(tmp_path) -> None:
    mosquitto = Mosquitto(tmp_path)
    await mosquitto.start()
    try:
        with steering(tmp_path, f"mqtt://127.0.0.1:{mosquitto.port}") as controller:
            with heard(mosquitto.port, 2) as topics:
                roll_out_at_once(controller)
            assert sorted(topics) == [f"edge-fleet/{name}/wake 0" for name in DEVICES]
            with heard(mosquitto.port, 1) as topics, controller.client() as operator:
                operator.post("/v1/devices/camera-2/diagnostics", json={}).raise_for_status()
            assert topics == ["edge-fleet/camera-2/wake 0"]
            assert controller.control.counts["wakes"] == 3
    finally:
        await mosquitto.stop()


@pytest.mark.asyncio
async def test_a_broker_that_comes_late_is_found(tmp_path) -> None:
    mosquitto = Mosquitto(tmp_path)
    with steering(tmp_path, f"mqtt://127.0.0.1:{mosquitto.port}") as controller:
        controller.control.rollouts.hints.note(["camera-1"])
        await mosquitto.start()
        try:
            while len(controller.control.rollouts.hints):
                time.sleep(0.05)
        finally:
            await mosquitto.stop()


def test_a_broker_that_never_comes_delays_nobody(tmp_path) -> None:
    with steering(tmp_path, f"mqtt://127.0.0.1:{free_port()}") as controller, controller.client() as operator:
        roll_out_at_once(controller)
        while not operator.get("/v1/devices/camera-1").json()["desired"]:
            time.sleep(0.05)


class StoppedMeanwhile(threading.Event):
    """Event that behaves like one whose `stop` is called each time before it is cleared."""

    def __init__(self, ended: threading.Event) -> None:
        super().__init__()
        self._ended = ended

    def clear(self) -> None:
        self._ended.set()
        self.set()
        super().clear()


def test_a_broker_that_is_lost_while_it_stops_keeps_no_thread(tmp_path) -> None:
    hints = Hints(2)
    waker = WakePublisher(WakeBrokerSettings(f"mqtt://127.0.0.1:{free_port()}"), tmp_path, hints, Counter(), "one")
    waker._up = StoppedMeanwhile(waker._ended)
    waker.start()
    waker._up.set()
    waker._lost(None, None, None, "gone")
    hints.note(["camera-1"])
    waker._thread.join(60.0)
    assert not waker._thread.is_alive()
    waker.stop(5.0)


def test_hints_are_bounded_and_each_device_waits_once() -> None:
    hints = Hints(2)
    hints.note(["a", "b", "a", "c"])
    assert len(hints) == 2
    assert (hints.take(1), hints.take(5), hints.take(5)) == (["a"], ["b"], [])
    assert not hints.noted.is_set()


@pytest.mark.parametrize(
    ("url", "found"),
    [("mqtt://b", ("b", 1883, False)), ("mqtts://b", ("b", 8883, True)), ("mqtt://[::1]:7", ("::1", 7, False))],
)
def test_where_a_broker_is(url, found) -> None:
    assert broker(url) == found


@pytest.mark.parametrize("url", ["b:1883", "http://b", "mqtt://", "mqtt://u:p@b", "mqtt://b:x"])
def test_what_is_no_broker_is_said(url) -> None:
    with pytest.raises(ConfigurationError, match=r"wake\.url"):
        broker(url)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"user": "fleet", "password_file": "none"}, "none: cannot be read"),
        ({"user": "fleet", "password_file": "empty"}, "empty: is empty; its first line is the password"),
        ({"user": "fleet", "password_file": "shared"}, "shared: others may read it"),
        ({"ca_file": "empty"}, r"wake\.ca_file: .*empty cannot be used"),
        ({"certificate_file": "empty"}, r"wake\.certificate_file, key_file: .*empty .* cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_named_at_the_start(tmp_path, wrong, problem) -> None:
    for name, mode in (("empty", 0o600), ("shared", 0o644)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    with pytest.raises(ConfigurationError, match=problem):
        WakePublisher(WakeBrokerSettings("mqtts://localhost", **wrong), tmp_path, Hints(), Counter(), "me")
