"""A whole device and its controller: enrolled, rolled out to, rolled back, revoked, let in again.

Clients of the device notice nothing meanwhile.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.controller.access import Role
from fleet.controller.config import FleetConfig
from fleet.controller.database import certificates, desired, devices, events, telemetry
from fleet.controller.database.devices import Device
from fleet.controller.monitoring.settings import AlertSettings
from gateway.device.agent.fetch.certificate import read_held
from tests.simulators import models_ill
from tests.simulators.asking import enrolment_token
from tests.simulators.constants import settings_with
from tests.simulators.daemon import ROOT
from tests.simulators.fleet_device import DEVICE, SLOT
from tests.simulators.member_device import MemberDevice, member_device, short_lived
from tests.simulators.operator import until

WAIT_S = 30.0


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory, state: Path) -> Iterator[MemberDevice]:
    with member_device(tmp_path_factory.mktemp("member"), state) as made:
        done = made.enrol(tags=["pilot"], site="berlin")
        assert done.code == 0, done.err
        yield made


@pytest.fixture(scope="module")
def operator(device: MemberDevice) -> Iterator[httpx.Client]:
    with device.fleet.client(Role.ADMIN) as client:
        yield client


def known(device: MemberDevice) -> Device:
    with device.fleet.control.database.read() as connection:
        return devices.get(connection, DEVICE)


def rollout_is(device: MemberDevice, operator: httpx.Client, rollout: str, *states: str) -> dict[str, Any]:
    """Return the rollout once it is in one of these states; the scheduler ticks by itself."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found: dict[str, Any] = operator.get(f"/v1/rollouts/{rollout}").json()
        if found["state"] in states:
            return found
        assert time.monotonic() < deadline, found
        device.fleet.control.rollouts.due.set()
        time.sleep(0.05)


def offered(device: MemberDevice, target: str) -> None:
    """Wait until the scheduler wants the device to run this."""
    deadline = time.monotonic() + WAIT_S
    while True:
        with device.fleet.control.database.read() as connection:
            if [one.target for one in desired.of_device(connection, DEVICE).slots] == [target]:
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_it_is_one_of_the_fleet(device) -> None:
    done = device.sync()
    assert done.code == 0, done.err
    assert device.status["controller"]["problem"] == ""
    found = known(device)
    assert (found.state.value, found.tags, found.site) == ("enrolled", {"pilot"}, "berlin")
    assert found.profile
    with device.fleet.control.database.read() as connection:
        assert devices.inventory(connection, DEVICE)["arch"]


def test_a_rollout_reaches_it_and_is_reported(device, operator) -> None:
    first = device.publish()
    rollout = device.roll_out(operator, first)
    offered(device, first)
    done = device.sync()
    assert (done.code, done.told["state"]) == (0, "in-step"), done.err
    rollout_is(device, operator, rollout, "finished")
    running = known(device).running
    assert [(one.slot, one.target, one.variant, one.state) for one in running] == [
        (SLOT, first, "onnx-int8", "committed")
    ]
    assert known(device).health == "in-step"


def test_a_bad_release_goes_back_with_evidence_and_the_rollout_stops(device, operator) -> None:
    good, bad = device.publish(), device.publish(models_ill.wrong_golden)
    first = device.roll_out(operator, good)
    offered(device, good)
    assert device.sync().code == 0
    rollout_is(device, operator, first, "finished")
    with device.hammered():
        rollout = device.roll_out(operator, bad, rollback="forced")
        offered(device, bad)
        assert device.sync().code == 1
        assert rollout_is(device, operator, rollout, "aborted")["state"] == "aborted"
        offered(device, good)
        assert device.sync().code == 0
    assert list(device.serving) == [good.split("/")[3]]
    settings = device.fleet.control.database.settings
    with device.fleet.control.database.read() as connection:
        said = events.page(connection, settings, device=DEVICE, kind="rollback", rollout=rollout)
    assert len(said) == 1
    assert "golden" in str(said[0].event.document["reason"])


def test_a_policy_holds_it(device, operator) -> None:
    late = b'{"schema": 1, "share_percent_per_hour": 0.1}'
    device.repository.add_file("policy/slow.json", late)
    target = device.publish()
    rollout = device.roll_out(operator, target)
    offered(device, target)
    assert device.sync().code == 3
    assert device.status["state"] == "held"
    found = operator.get(f"/v1/rollouts/{rollout}/devices").json()["items"]
    assert [(one["device"], one["state"]) for one in found] == [(DEVICE, "offered")]
    operator.post(f"/v1/rollouts/{rollout}/abort", json={"reason": "the test is over"})


def test_all_that_it_told_is_there(device) -> None:
    with device.fleet.control.database.read() as connection:
        found = telemetry.sources(connection, DEVICE)
    assert {"vitals", "statistics", "state", "updates"} <= {one.stream for one in found}
    assert all(one.gaps == () and one.lost == 0 and one.contiguous == one.rows for one in found)


def test_a_suspended_device_serves_waits_and_comes_back_by_itself(device, operator) -> None:
    def rows() -> int:
        with device.fleet.control.database.read() as connection:
            return sum(one.rows for one in telemetry.sources(connection, DEVICE))

    assert operator.post(f"/v1/devices/{DEVICE}/suspend", json={"because": "odd answers"}).status_code == 200
    serving, told = list(device.serving), rows()
    for _ in range(2):  # a poll learns of it, and the next one knows it already
        done = device.sync()
        assert (done.code, done.told["state"]) == (3, "suspended"), done.err
        assert "the fleet suspended this device; it goes on with what it runs" in done.told["why"]
    assert device.status["controller"]["problem"] == "", "no enrolment is advised"
    assert list(device.serving) == serving
    assert rows() == told
    refused = device.enrol()
    assert (refused.code, "is suspended; an operator may resume it" in refused.err) == (2, True), refused.err
    operator.post(f"/v1/devices/{DEVICE}/resume").raise_for_status()
    done = device.sync()
    assert done.told["state"] != "suspended", done.err
    assert device.status["last_poll"]["reason"] == ""
    with device.fleet.control.database.read() as connection:
        found = telemetry.sources(connection, DEVICE)
        (epoch,) = {one.boot_epoch for one in found if one.stream == "events"}
        settings = device.fleet.control.database.settings
        said = telemetry.page(connection, DEVICE, settings, stream="events", boot_epoch=epoch)
    assert rows() > told
    assert all(one.gaps == () and one.lost == 0 and one.contiguous == one.rows for one in found)
    assert "suspended" in [one.row.document.get("reason") for one in said]


def test_a_revoked_device_is_out_until_it_is_enrolled_again(device) -> None:
    control, now = device.fleet.control, device.fleet.clock()
    with control.database.write() as connection:
        devices.change_state(connection, DEVICE, "revoke", "lost", now)
        certificates.revoke_all(connection, DEVICE, "lost", now)
    assert device.sync().code == 3
    assert "enrol" in str(device.status["last_poll"]) + str(device.status["controller"])
    assert list(device.serving), "what runs serves on"
    assert device.enrol().code != 0
    with control.database.write() as connection:
        devices.change_state(connection, DEVICE, "readmit", "", now)
    done = device.enrol()
    assert done.code == 0, done.err
    assert device.sync().code in {0, 3}
    assert device.status["last_poll"]["reason"] == ""


def test_a_token_does_not_let_in_twice(device, tmp_path) -> None:
    token = enrolment_token(device.fleet, "door-2")
    file = tmp_path / "token"
    file.write_text(token)
    words = ("enrol", device.fleet.url, "--token-file", str(file), "--ca", str(device.fleet.ca_file))
    refused = device.agent(*words)
    assert (refused.code, "calls it door-2" in refused.err) == (2, True), refused.err
    again = device.agent(*words)
    assert again.code == 2


def test_a_certificate_is_renewed_by_itself(tmp_path, state) -> None:
    with member_device(tmp_path, state, short_lived()) as device:
        assert device.enrol().code == 0
        first = read_held(device.store)
        assert device.sync().code == 0
        second = read_held(device.store)
        assert first
        assert second
        assert second.serial != first.serial
        with device.fleet.control.database.read() as connection:
            held = certificates.of_device(connection, DEVICE, device.fleet.control.database.settings)
        assert {first.serial, second.serial} <= {one.serial for one in held}
        assert not any(one.revoked for one in held)
        assert len({one.key_digest for one in held}) == len(held)
        before = device.store / "device.pem"
        key = before.read_text().partition("-----BEGIN CERTIFICATE")[0]
        (device.store / "device-next.key").write_text(key)  # power failed before it was forgotten
        assert device.sync().code == 0
        third = read_held(device.store)
        assert third
        assert third.serial != second.serial
        assert device.status["controller"]["problem"] == ""


def test_a_device_that_was_assigned_by_hand_goes_on(tmp_path, state) -> None:
    with member_device(tmp_path, state) as device, device.server.running():
        assert device.bootstrap().code == 0
        assert device.update().code == 0
        assert device.update().code == 0
        before = device.status
        done = device.enrol()
        assert done.code == 0, done.err
        done = device.sync()
        assert (done.code, done.told["state"]) == (0, "in-step"), done.err
        assert device.status["assignment"]["version"] > before["assignment"]["version"] == 2
        assert list(device.serving) == ["2"]


BOARDS = {"a": "4c4c4544-0042-3510-8054-b4c04f564231", "b": "4c4c4544-0042-3510-8054-b4c04f564232"}


def syncing(device: MemberDevice, board: str, boot: str, store: Path) -> subprocess.Popen[bytes]:
    """Start `edge-agent sync` as it runs on a board, with the storage in `store`."""
    command = [str(store) if word == str(device.store) else word for word in device.command("sync")]
    environ = {**os.environ, "BOOT_ID": boot, "PRODUCT_UUID": BOARDS[board]}
    return subprocess.Popen(command, env=environ, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def test_two_boards_with_copies_of_one_card_are_noticed_and_both_are_heard(tmp_path, state) -> None:
    often = settings_with(AlertSettings(), evaluate_every_s=0.05, settle_s=0.0, calm_s=0.0)
    with member_device(tmp_path, state, FleetConfig(alerts=often)) as device, device.fleet.client(Role.ADMIN) as client:
        assert device.enrol().code == 0
        assert syncing(device, "a", "a-1", device.store).wait(WAIT_S) == 0
        copy = Path(shutil.copytree(device.store, tmp_path / "copy"))
        boards = [("a", "a-1", device.store), ("b", "b-1", copy)]

        def heard() -> bool:  # in turn: one of two requests at one moment with one identity is sent again much later
            assert [syncing(device, *board).wait(WAIT_S) for board in boards * 2] == [0] * 4
            with device.fleet.control.database.read() as connection:
                found = [one for one in telemetry.sources(connection, DEVICE) if one.stream == "vitals"]
            assert all((one.rows, one.lost) == (one.contiguous, 0) for one in found), found
            return len(found) == len(boards)

        until(heard, "one of two boards is not heard")
        query = "/v1/alerts?rule=identity&state=open"
        until(lambda: len(client.get(query).json()["items"]) == 1, "no alert opens")
        (opened,) = client.get(query).json()["items"]
        assert opened["summary"].startswith(f"identity used twice: two machines report as {DEVICE}")
        assert len({*opened["evidence"]["hardware"]["uuid"], *opened["evidence"]["before"]["uuid"]}) == 2
        moved = client.get(f"/v1/events?kind=moved&device={DEVICE}").json()["items"]
        assert len(moved) == 1  # the copy's first report could have been that of a card in a spare board
