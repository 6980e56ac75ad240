"""Restarts for settings of the fleet, with clients that connect for every request: none is refused."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.simulators.newcomers import Newcomers, over_grpc, over_http
from tests.simulators.settled_device import GOOD, Settled, device, instance

__all__ = ("device",)
pytestmark = pytest.mark.timeout(240)


def clients(device: Settled) -> Newcomers:
    """Return clients of every listener."""
    return Newcomers(
        grpc=over_grpc(device.daemon.grpc),
        http=over_http(device.http, "/v2/health/live"),
        control=over_http(str(device.socket), "/v1/settings"),
    )


def sockets(pid: int) -> int:
    """Return how many sockets a process has open."""
    return sum("socket" in str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.parametrize("restarts", [3, pytest.param(12, marks=pytest.mark.long)])
def test_no_connection_is_refused(device: Settled, restarts: int) -> None:
    before, http, processes = sockets(device.daemon.pid), device.http, {instance(device)}
    with clients(device).coming() as newcomers:
        for turn in range(restarts):
            assert device.send("" if turn % 2 else GOOD).code == 0
            processes.add(instance(device))
            newcomers.wait_answers()
    assert newcomers.failures == []
    assert len(processes) == 1 + restarts
    assert device.http == http  # the port that was chosen for port 0, too
    while sockets(device.daemon.pid) > before:  # the last client's connection is being closed
        time.sleep(0.01)
    assert (device.folder / "grpc.sock").is_socket()

    device.daemon.signal(signal.SIGTERM)
    assert device.daemon.ended() == 0
    assert not (device.folder / "grpc.sock").exists()
    assert not device.socket.exists()
