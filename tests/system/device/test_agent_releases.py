"""Releases on a whole device: good ones take over, ill ones go back, and who asks meanwhile notices nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from tests.simulators import models_ill
from tests.simulators.daemon import golden
from tests.simulators.fleet_device import SLOT, Change, FleetDevice, device
from tests.simulators.hammer import Hammer

__all__ = ["device"]


@pytest.fixture(autouse=True)
def hammer(device: FleetDevice) -> Iterator[Hammer]:
    """Send requests throughout; none of them may fail."""
    device.configure()
    with device.hammered() as hammer:
        yield hammer


def ended(device: FleetDevice) -> dict[str, Any]:
    """Return the latest update that is over."""
    found: dict[str, Any] = device.status["history"][0]
    return found


def test_a_new_version_takes_over_and_the_old_one_leaves(device: FleetDevice) -> None:
    before = set(device.serving)
    done = device.update()
    assert (done.code, done.told["state"]) == (0, "in-step"), done.err
    assert before.isdisjoint(device.serving)
    assert device.serving == {str(device.newest): 100}
    assert ended(device)["state"] == "committed"
    verified = device.agent("verify", "--json")
    assert (verified.code, verified.told["ok"], len(verified.told["checked"])) == (0, True, 2)


ILL = {
    "golden": (models_ill.wrong_golden, "failed its golden set"),
    "crashes": (models_ill.crashing, "died by SIGSEGV"),
    "hangs": (models_ill.hanging, "no answer within"),
    "slow": (models_ill.looping(5000), "more than 30 times as long"),
}


@pytest.mark.parametrize(
    "name", ["golden", "slow", *[pytest.param(name, marks=pytest.mark.long) for name in ("crashes", "hangs")]]
)
def test_an_ill_release_goes_back_and_is_not_tried_again(device: FleetDevice, name: str) -> None:
    change, reason = ILL[name]
    serving = device.serving
    done = device.update(change)
    if name == "hangs" and done.told["state"] == "waiting":  # on a busy machine a time-out says nothing about a model
        assert (done.code, device.serving) == (3, serving)
        assert reason in done.told["why"], done.told
        return
    assert (done.code, done.told["state"]) == (1, "behind")
    assert reason in done.told["why"]
    update = ended(device)
    assert (update["version"], update["state"]) == (str(device.newest), "rolled_back")
    assert (update["failure"]["step"], reason in update["failure"]["reason"]) == ("load", True)
    assert device.serving == serving

    again = device.sync()
    assert (again.code, reason in again.told["why"]) == (1, True)
    assert again.told["history"] == done.told["history"]


@pytest.mark.long
def test_what_failed_is_tried_again_where_that_is_asked_for(device: FleetDevice) -> None:
    device.update(models_ill.looping(5000))
    device.configure(probation={"slower_factor": 1e6})
    assert device.sync().code == 1
    assert device.sync("--retry").code == 0
    assert device.serving == {str(device.newest): 100}
    assert device.update().code == 0  # and is quick again


@pytest.mark.long
def test_a_release_that_failed_is_tried_again_once_another_was_assigned(device: FleetDevice) -> None:
    honest = f"models/acme/{SLOT}/{next(iter(device.serving))}/release"
    slow = device.publish(models_ill.looping(5000))
    device.assign(slow)
    assert device.sync().code == 1
    device.configure(probation={"slower_factor": 1e6})
    device.assign(slow)  # the same, signed again
    assert device.sync().code == 1
    device.assign(honest)
    assert device.sync().code == 0
    device.assign(slow)
    assert device.sync().code == 0
    assert device.update().code == 0


def live(device: FleetDevice, change: Change, rows: int, **probation: Any) -> dict[str, Any]:
    """Return the failure of a release that passes its trial, while other clients send so many rows."""
    device.configure(probation={"duration_s": 30.0, "share_percent": 50, **probation})
    serving = device.serving
    with device.hammered(rows):
        done = device.update(change)
        while done.code == 3:  # a busy machine: nothing is known of the release, and the agent tries again later
            done = device.sync()
    assert (done.code, device.serving) == (1, serving), done.told
    update = ended(device)
    assert (update["state"], update["failure"]["step"]) == ("rolled_back", "probation")
    failure: dict[str, Any] = update["failure"]
    return failure


def test_a_release_that_is_slow_with_live_requests_only(device: FleetDevice) -> None:
    failure = live(device, models_ill.looping(5000, per_row=True), rows=8, slower_factor=3.0)
    assert "more than 3 times as long" in failure["reason"]
    evidence = failure["evidence"]
    assert evidence["run_us"] > 3 * evidence["old_run_us"] > 0
    assert evidence["requests"] >= 20


@pytest.mark.long
def test_a_release_that_makes_the_daemon_grow(device: FleetDevice) -> None:
    """Memory that its trial did not need, because it never got so many rows there."""
    device.configure(probation={"duration_s": 30.0, "slower_factor": 1e6, "leak_bytes": 64 << 20})
    serving = device.serving
    device.assign(device.publish(models_ill.hoarding(1)))
    with device.started("sync", "--json") as agent:
        device.wait_for_share(agent)
        ask(device, rows=128, version=str(device.newest))
        agent.communicate()
    failure = ended(device)["failure"]
    assert "the daemon grew by" in failure["reason"]
    assert failure["evidence"]["grown_bytes"] > 64 << 20
    assert device.serving == serving


def ask(device: FleetDevice, rows: int, version: str) -> None:
    """Send one request that names a version."""
    wanted = golden(SLOT, rows)
    tensor = triton.InferInput(wanted.name, list(wanted.rows.shape), "FP32")
    tensor.set_data_from_numpy(wanted.rows)
    with triton.InferenceServerClient(device.daemon.grpc) as client:
        scores = client.infer(SLOT, [tensor], version).as_numpy("scores")
    assert np.array_equal(scores.argmax(axis=1), wanted.scores.argmax(axis=1))


def test_a_new_assignment_takes_the_place_of_an_update_on_probation(device: FleetDevice) -> None:
    device.configure(probation={"duration_s": 30.0})
    overtaken = device.publish()
    device.assign(overtaken)
    with device.started("sync") as agent:
        device.wait_for_share(agent)
        agent.kill()
    device.configure()
    device.assign(device.publish())
    for _ in range(3):
        done = device.sync()
        if done.told["state"] == "in-step":
            break
    assert done.told["state"] == "in-step", done.told
    assert device.serving == {str(device.newest): 100}
    (over,) = [update for update in done.told["history"] if update["target"] == overtaken]
    assert (over["state"], over["failure"]["reason"]) == ("rolled_back", "something else is assigned now")


@pytest.mark.long
def test_back_by_hand_and_forward_by_another_assignment(device: FleetDevice) -> None:
    assert device.update().code == 0
    back = device.agent("rollback", SLOT, "--json")
    assert back.code == 0, back.err
    previous = back.told["to"].split("/")[3]
    assert device.serving == {previous: 100}
    done = device.sync()
    assert (done.code, "rolled back by hand" in done.told["why"]) == (1, True), done.told["why"]
    assert device.serving == {previous: 100}
    assert device.agent("rollback", SLOT).code == 3  # nothing further to go back to
    device.assign(device.publish())
    assert device.sync().code == 0
    assert device.serving == {str(device.newest): 100}
