"""Devices without network, and with wrong clocks: the time decides what they trust, and no clock may brick them.

A preloaded library gives the kernel's answer to whether the clock is synchronised.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.fleet_device import DEVICE, SLOT, Done, FleetDevice, device

__all__ = ["device"]
PAST, FUTURE = "1970-01-02 00:00:00", "2099-01-01 00:00:00"
KERNEL = 'extern "C" int adjtimex(void*) {{ return {}; }}'
STATES = {"synchronised": 0, "adrift": 5}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return libraries whose kernel says so."""
    folder = tmp_path_factory.mktemp("kernels")
    for name, answer in STATES.items():
        (folder / f"{name}.cc").write_text(KERNEL.format(answer))
        command = ["/usr/bin/env", "g++", "-shared", "-fPIC", "-o", f"{name}.so", f"{name}.cc"]
        subprocess.run(command, cwd=folder, check=True)
    return {name: str(folder / f"{name}.so") for name in STATES}


@pytest.fixture(autouse=True)
def honest(device: FleetDevice) -> Iterator[None]:
    """Restore the server: it is well, signs nothing on demand, and its time is now."""
    yield
    device.server.ill, device.server.director, device.server.changes = {}, None, {}
    device.repository.now = datetime.now(UTC)
    device.repository.publish()


def sync_at(device: FleetDevice, when: str, kernel: str, *arguments: str) -> Done:
    """Run the agent with another clock and kernel's word on it, in a boot of its own: no time was attested yet."""
    clock = {"LD_PRELOAD": kernel, "FAKETIME_DONT_FAKE_MONOTONIC": "1", "BOOT_ID": secrets.token_hex(8)}
    return device.sync(*arguments, wrap=("faketime", when), **clock)


def refused(done: Done, reason: str) -> None:
    assert (done.code, done.told["state"], done.told["last_poll"]["reason"]) == (1, "refused", reason), done.told["why"]


# ---- without network -------------------------------------------------------------------------------------------------
def test_a_carried_repository_needs_no_network(device: FleetDevice, tmp_path: Path) -> None:
    device.server.ill = {"": lambda exchange: None}
    device.assign(device.publish())
    medium = tmp_path / "usb"
    subprocess.run(["/usr/bin/env", "cp", "-r", str(device.repository.public), str(medium)], check=True)
    asked = len(device.server.asked)
    with device.hammered():
        done = device.sync("--from", str(medium))
    assert done.code == 0, done.err
    assert device.serving == {str(device.newest): 100}
    assert len(device.server.asked) == asked


@pytest.mark.parametrize(("age_d", "believed"), [(25, True), pytest.param(40, False, marks=pytest.mark.long)])
def test_carried_documents_of_online_keys_may_be_thirty_days_past(
    device: FleetDevice, age_d: int, believed: bool
) -> None:
    device.repository.now = datetime.now(UTC) - timedelta(days=age_d)
    device.repository.publish()
    device.assign(device.publish())
    refused(device.sync(), "expired")  # from the network they may not
    done = device.sync("--from", str(device.repository.public))
    if believed:
        assert done.code == 0, done.told["why"]
        assert device.serving == {str(device.newest): 100}
    else:
        refused(done, "expired")


def test_what_is_carried_is_verified_as_anything_else(device: FleetDevice, tmp_path: Path) -> None:
    serving = device.serving
    forged, _ = device.repository.forge_release(SLOT, "66", b"of somebody else")
    device.repository.assign(DEVICE, {SLOT: forged})
    refused(device.sync("--from", str(device.repository.public)), "unsigned")
    (tmp_path / "empty").mkdir()
    assert device.sync("--from", str(tmp_path / "empty")).code == 3
    assert device.agent("sync", "--from", str(tmp_path / "nothing")).code == 2
    assert device.serving == serving
    device.assign(device.publish())
    assert device.sync().code == 0


# ---- clocks ----------------------------------------------------------------------------------------------------------
def floor(device: FleetDevice) -> datetime:
    return datetime.fromisoformat(device.status["time_floor"])


@pytest.mark.long
@pytest.mark.parametrize("word", STATES)
def test_a_clock_at_1970_stops_nothing(device: FleetDevice, kernels: dict[str, str], word: str) -> None:
    before = floor(device)
    device.assign(device.publish())
    done = sync_at(device, PAST, kernels[word])
    assert done.code == 0, done.told["why"]
    assert device.serving == {str(device.newest): 100}
    assert floor(device) == before


@pytest.mark.parametrize("word", ["synchronised", pytest.param("adrift", marks=pytest.mark.long)])
def test_a_clock_at_2099_does_no_harm_that_lasts(device: FleetDevice, kernels: dict[str, str], word: str) -> None:
    before, serving = floor(device), device.serving
    device.assign(device.publish())
    refused(sync_at(device, FUTURE, kernels[word]), "expired")
    assert (floor(device), device.serving) == (before, serving)
    done = device.sync()
    assert done.code == 0, done.told["why"]


@pytest.mark.parametrize("when", [FUTURE, pytest.param(PAST, marks=pytest.mark.long)])
def test_a_director_that_repeats_the_nonce_tells_the_time(
    device: FleetDevice, kernels: dict[str, str], when: str
) -> None:
    before = floor(device)
    device.server.director = {SLOT: device.publish()}
    done = sync_at(device, when, kernels["adrift"])
    assert done.code == 0, done.told["why"]
    assert device.serving == {str(device.newest): 100}
    assert floor(device) == before
    assert any("nonce=" in path for path in device.server.asked[-8:])


ATTESTED: dict[str, tuple[dict[str, Any], str]] = {
    "another nonce": ({"nonce": "00" * 16}, "wrong-nonce"),
    "a time beyond the offline keys": (
        {"issued": datetime(2098, 1, 1, tzinfo=UTC), "expires": datetime(2098, 1, 2, tzinfo=UTC)},
        "wrong-time",
    ),
}


@pytest.mark.parametrize("lie", ATTESTED)
def test_a_director_that_lies_about_the_time(device: FleetDevice, kernels: dict[str, str], lie: str) -> None:
    before, serving = floor(device), device.serving
    changes, reason = ATTESTED[lie]
    device.server.director, device.server.changes = {SLOT: device.publish()}, changes
    refused(sync_at(device, PAST, kernels["adrift"]), reason)
    assert (floor(device), device.serving) == (before, serving)


def test_a_clock_that_is_kept_right_needs_no_nonce_and_raises_the_floor(
    device: FleetDevice, kernels: dict[str, str]
) -> None:
    device.assign(device.publish())
    before, asked = datetime.now(UTC), len(device.server.asked)
    done = device.sync(LD_PRELOAD=kernels["synchronised"])
    assert done.code == 0, done.told["why"]
    assert floor(device) >= before.replace(microsecond=0)
    assert not [path for path in device.server.asked[asked:] if "nonce" in path]
    assert device.sync(LD_PRELOAD=kernels["synchronised"]).code == 0  # not modified
    assert device.status["last_poll"]["reason"] == ""
