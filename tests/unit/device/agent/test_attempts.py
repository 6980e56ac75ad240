"""Tried again when the fleet says so, and only then; every report says which attempt it answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.common.domain.errors import UnreachableError
from gateway.common.domain.update import Step
from gateway.device.agent.clock import system_now
from gateway.device.agent.control import DaemonRefusedError
from gateway.device.agent.state.storage import opened
from gateway.device.agent.update import work
from gateway.device.agent.update.committing import roll_back
from tests.simulators.enrolled_device import CONFIG, DEVICE, SLOT, Device, enrolled_device

BAD = DaemonRefusedError("INVALID", "the golden set fails")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """Yield a device that committed version 1, and rejected version 2 at its first offer."""
    with enrolled_device(tmp_path, monkeypatch) as made:
        made.update("1")
        made.control.always["load"] = BAD
        name(made, 1)
        made.update("2")
        assert tries(made) == 2
        yield made


def name(device: Device, attempt: Any) -> None:
    device.fleet.extra[DEVICE] = {"attempts": {SLOT: attempt}}


def tries(device: Device) -> int:
    return len(device.control.named("load"))


def told(device: Device) -> tuple[tuple[str, int], list[tuple[str, int]]]:
    """Return state and attempt of the slot as it was reported last, and of all updates."""
    assert device.report() == ""
    slots = [row["document"] for row in device.told.of("state") if row["kind"] == "slot"]
    updates = [row["document"] for row in device.told.of("updates")]
    return (slots[-1]["state"], slots[-1]["attempt"]), [(one["state"], one["attempt"]) for one in updates]


def test_the_same_attempt_is_not_made_twice_and_a_greater_one_is(device: Device) -> None:
    assert told(device) == (("rolled_back", 1), [("committed", 0), ("rolled_back", 1)])
    device.sync()
    assert tries(device) == 2
    name(device, 2)
    device.sync()
    device.sync()
    assert tries(device) == 3
    assert told(device) == (("rolled_back", 2), [("committed", 0), ("rolled_back", 1), ("rolled_back", 2)])
    name(device, 3)
    del device.control.always["load"]
    device.sync()
    assert told(device)[0] == ("committed", 3)
    assert told(device)[1][-1] == ("committed", 3)


def test_what_is_committed_answers_every_attempt(device: Device) -> None:
    del device.control.always["load"]
    name(device, 2)
    device.sync()
    name(device, 7)
    device.sync()
    assert tries(device) == 3
    assert told(device)[0] == ("committed", 7)


@pytest.mark.parametrize("attempt", [0, -1, True, "2", None, [2], {"n": 2}, 2**53, 2**80])
def test_what_is_no_attempt_is_ignored(device: Device, attempt: Any) -> None:
    name(device, attempt)
    device.sync()
    assert tries(device) == 2
    assert told(device)[0] == ("rolled_back", 0)


@pytest.mark.parametrize("attempts", [None, 7, "x", [], {"other": 9}, {"": 1}])
def test_attempts_of_another_form_are_ignored(device: Device, attempts: Any) -> None:
    device.fleet.extra[DEVICE] = {"attempts": attempts}
    device.sync()
    assert tries(device) == 2


def test_an_update_under_way_answers_the_latest_attempt_and_is_not_made_twice(device: Device) -> None:
    device.control.always["load"] = UnreachableError("it does not answer", table="control", key="socket")
    name(device, 2)
    device.sync()
    assert told(device)[0] == ("downloading", 2)
    name(device, 3)
    device.sync()
    assert told(device)[0] == ("downloading", 3)
    device.control.always["load"] = BAD
    device.sync()
    before = tries(device)
    device.sync()
    assert tries(device) == before
    assert told(device)[1][-1] == ("rolled_back", 3)


def test_after_a_restart_it_is_known_at_which_attempt_it_failed(device: Device) -> None:
    name(device, 2)
    for _ in range(2):
        with opened(device.folder, CONFIG) as storage:
            assert not work.Agent(storage, CONFIG).poll().problem
    with opened(device.folder, CONFIG) as storage:
        (update,) = storage.journal.updates()
        assert update.attempt == 2


def test_what_was_rolled_back_by_hand_is_not_brought_back_by_an_attempt(device: Device) -> None:
    del device.control.always["load"]
    name(device, 2)
    device.sync()
    with opened(device.folder, CONFIG) as storage:
        roll_back(storage, SLOT)
    name(device, 3)
    device.sync()
    assert told(device)[0] == ("rolled_back", 3)


def test_the_state_of_another_release_is_not_told_as_that_of_the_assigned_one(device: Device) -> None:
    """The update beyond its commit ends first: until then the one that is assigned now has only been offered."""
    del device.control.always["load"]
    name(device, 2)
    with opened(device.folder, CONFIG) as storage:
        assert not work.Agent(storage, CONFIG).poll().problem
        storage.journal.record(SLOT, Step.COMMIT, system_now())
    target = device.fleet.repository.add_release(SLOT, "3")
    device.fleet.assigned[DEVICE] = ({SLOT: target}, ())
    name(device, 1)
    with opened(device.folder, CONFIG) as storage:
        assert not work.Agent(storage, CONFIG).poll().problem
    assert told(device)[0] == ("offered", 1)
