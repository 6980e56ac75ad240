"""Notifications to the service manager, on a real datagram socket."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.common.notify import Notifier, failures_in_a_row, forget_failures, watchdog_period_s


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, Notifier]]:
    name = f"@edge-{os.getpid()}" if request.param == "abstract" else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("\0" + name[1:] if name.startswith("@") else name)
        listener.settimeout(5)
        yield listener, Notifier.from_environment({"NOTIFY_SOCKET": name})


def test_the_manager_hears_every_step(manager: tuple[socket.socket, Notifier]) -> None:
    listener, notifier = manager
    steps = {
        notifier.ready: b"READY=1\nSTATUS=now",
        notifier.stopping: b"STOPPING=1\nSTATUS=now",
    }
    for step, heard in steps.items():
        assert step("now")
        assert listener.recv(4096) == heard
    assert notifier.watchdog()
    assert listener.recv(4096) == b"WATCHDOG=1"


def test_reloading_carries_the_monotonic_clock(manager: tuple[socket.socket, Notifier]) -> None:
    listener, notifier = manager
    before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    assert notifier.reloading()
    first, second = listener.recv(4096).decode().split("\n")
    assert first == "RELOADING=1"
    assert (
        before_us <= int(second.removeprefix("MONOTONIC_USEC=")) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    )


def test_a_status_is_one_line(manager: tuple[socket.socket, Notifier]) -> None:
    listener, notifier = manager
    notifier.ready("fine\nMAINPID=1")
    assert listener.recv(4096) == b"READY=1\nSTATUS=fine MAINPID=1"


@pytest.mark.parametrize(
    "environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "/no"}]
)
def test_without_a_manager_nothing_happens(environ: dict[str, str]) -> None:
    notifier = Notifier.from_environment(environ)
    assert not notifier.ready("now")
    assert not notifier.watchdog()


def test_a_full_manager_does_not_block(manager: tuple[socket.socket, Notifier]) -> None:
    _, notifier = manager
    told = [notifier.watchdog() for _ in range(2000)]
    assert told[0]
    assert not told[-1]


@pytest.mark.parametrize(
    ("environ", "period_s"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_twice_per_period(environ: dict[str, str], period_s: float | None) -> None:
    assert watchdog_period_s(environ) == period_s


# ---- ends of earlier processes -------------------------------------------------------------------------------------

ENDS = {
    "": "",
    "success exited 0": "",
    "signal killed SEGV": "1 failure in a row, the last one by signal SEGV",
    "signal killed SEGV\nsuccess exited 0": "",
    "success exited 0\nsignal dumped SEGV\nexit-code exited 1": "2 failures in a row, the last one by exit code 1",
    "watchdog dumped ABRT": "1 failure in a row, the last one by the watchdog and signal ABRT",
    "oom-kill killed KILL": "1 failure in a row, the last one by lack of memory and signal KILL",
    "\ufffd": "1 failure in a row, the last one by signal ",
}


@pytest.mark.parametrize(("lines", "told"), ENDS.items())
def test_failures_in_a_row_are_counted(lines: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "ended").write_text(lines)
    environ = {"RUNTIME_DIRECTORY": f"{tmp_path}:/other"}
    assert failures_in_a_row(environ) == told
    forget_failures(environ)
    assert failures_in_a_row(environ) == ""
    forget_failures(environ)


def test_the_record_of_ends_does_not_grow(tmp_path: Path) -> None:
    (tmp_path / "ended").write_text("signal killed SEGV\n" * 500)
    for _ in range(2):
        assert failures_in_a_row({"RUNTIME_DIRECTORY": str(tmp_path)}).startswith("100 " if _ else "500 ")
    assert len((tmp_path / "ended").read_text().splitlines()) == 100


def test_without_a_unit_nothing_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ended").write_text("signal killed SEGV")
    assert failures_in_a_row({}) == ""
    forget_failures({})
    assert (tmp_path / "ended").exists()
