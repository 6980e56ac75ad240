"""A whole device and its controller: a model is taken off it, it is removed, and comes back under its name."""

from __future__ import annotations

from pathlib import Path

import httpx

from fleet.controller.access import Role
from gateway.common.domain.policy import Policy
from tests.simulators.fleet_device import DEVICE, SLOT
from tests.simulators.member_device import MemberDevice, member_device
from tests.simulators.operator import until
from tests.simulators.policy_document import policy_bytes

PATH = f"/v1/devices/{DEVICE}"
WHY = {"because": "the wall is gone"}


def brought(device: MemberDevice, operator: httpx.Client, target: str) -> str:
    """Return the path of a rollout that the device followed."""
    rollout = device.roll_out(operator, target)
    until(lambda: operator.get(PATH).json()["desired"], "nothing is offered")
    done = device.sync()
    assert done.code == 0, done.err
    assert list(device.serving) == [target.split("/")[3]]
    return f"/v1/rollouts/{rollout}"


def test_what_is_taken_away_ends_there_and_who_comes_back_is_believed(tmp_path: Path, state: Path) -> None:
    with member_device(tmp_path, state) as device, device.fleet.client(Role.OPERATOR) as operator:
        assert device.enrol().code == 0
        free = Policy(removal_hold_h=0.0, removal_share_percent_per_hour=100.0, removal_of_last=True)
        device.repository.add_file("policy/free.json", policy_bytes(free))
        target = device.publish()
        rollout = brought(device, operator, target)
        until(lambda: operator.get(rollout).json()["state"] == "finished", "the rollout goes on")
        assert operator.delete(f"{PATH}/slots/{SLOT}", params=WHY).status_code == 204
        assert device.sync().code == 0
        assert list(device.serving) == []
        until(lambda: not operator.get(PATH).json()["running"], "the device does not say that it ended")
        assert operator.post(f"{PATH}/revoke").is_success
        assert operator.delete(PATH, params=WHY).status_code == 204
        assert device.sync().code == 3
        assert operator.get(PATH).status_code == 404
        done = device.enrol()
        assert done.code == 0, done.err
        brought(device, operator, target)
