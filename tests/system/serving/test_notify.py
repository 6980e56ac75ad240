"""Notifications to systemd, on a real NOTIFY_SOCKET: READY, WATCHDOG, RELOADING, STOPPING, in that order."""

import signal
import time

from tests.simulators.daemon import running

WATCHDOG_US = 400_000


def kinds(daemon):
    return [said.splitlines()[0] for said in daemon.heard]


def test_ready_only_once_the_models_are_in_step(tmp_path, state):
    with running(tmp_path, state=state) as daemon:
        (ready,) = daemon.heard
        assert ready.splitlines() == ["READY=1", "STATUS=2 model versions ready"]
        events = [line["event"] for line in daemon.lines()]
        assert "models in step" in events


def test_the_whole_life(tmp_path, state):
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with running(tmp_path, state=state) as daemon:
        daemon.reload()
        reloading = dict(line.split("=", 1) for line in daemon.heard[1].splitlines())
        assert before_us < int(reloading["MONOTONIC_USEC"]) < time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        daemon.signal(signal.SIGTERM)
        daemon.wait("STOPPING=1")
        assert daemon.ended() == 0
        assert kinds(daemon) == ["READY=1", "RELOADING=1", "READY=1", "STOPPING=1"]


def test_the_watchdog_is_fed_at_half_its_time(tmp_path, state):
    """Messages come as often as half the time allows: systemd would kill a daemon that misses a whole period."""
    with running(tmp_path, state=state, environ={"WATCHDOG_USEC": str(WATCHDOG_US)}) as daemon:
        began = time.monotonic()
        for _ in range(6):
            daemon.wait("WATCHDOG=1")
        took_s = time.monotonic() - began
    assert took_s > 4 * WATCHDOG_US / 2e6
    assert kinds(daemon).count("READY=1") == 1


def test_no_watchdog_for_another_process(tmp_path, state):
    with running(tmp_path, state=state, environ={"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}) as daemon:
        daemon.reload()
        assert "WATCHDOG=1" not in kinds(daemon)


def test_refused_models_are_named_in_the_status(tmp_path, state):
    (tmp_path / "models" / "broken" / "1").mkdir(parents=True)
    with running(tmp_path / "gateway", models=tmp_path / "models", state=state) as daemon:
        assert "STATUS=0 model versions ready; unavailable: broken 1" in daemon.heard[0]
