"""State of a whole poll is kept where one change of it fails: the waits of the others go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

from gateway.common.domain.activation import Activation
from gateway.common.domain.assignment import Target
from gateway.common.domain.errors import UnreachableError
from gateway.common.store.errors import SpaceError
from gateway.common.transfer.source import FetchError
from gateway.common.trust.distrust import Distrust, Reason
from gateway.device.agent.control import DaemonRefusedError
from gateway.device.agent.state.policy import HELD
from gateway.device.agent.state.polled import PollResult
from gateway.device.agent.update.poll import Poll
from tests.unit.device.agent import test_policy
from tests.unit.device.agent.test_policy import DAY, DEVICE, FREE, HOUR, PATH, SLOT, SLOW, Device

device = test_policy.device
AWAY = UnreachableError("the daemon does not answer")
PROBLEMS: dict[str, Exception] = {
    "below-floor": Distrust(Reason.BELOW_FLOOR, "aaa", "the floor has risen"),
    "unreachable": FetchError("the server lost it", status=404, final=True),
    "daemon": AWAY,
    "daemon-refuses": DaemonRefusedError("INVALID", "no such thing"),
}
Spoil = Callable[[str, Exception], None]


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Spoil:
    """Return a function that makes every read of a slot fail from now on."""

    def spoilt(slot: str, problem: Exception) -> None:
        new = Poll.new

        def failing(poll: Poll, one: str, target: Target) -> Activation:
            if one == slot:
                raise problem
            return new(poll, one, target)

        monkeypatch.setattr(Poll, "new", failing)

    return spoilt


def ask(device: Device, slots: dict[str, str], *files: str) -> PollResult:
    """Assign these slots, order the removal of the usual one if it is not among them, and poll."""
    device.repository.assign(DEVICE, slots, files, extra={} if SLOT in slots else {"removed": [SLOT]})
    return device.agent.poll()


def until(device: Device, slot: str = SLOT) -> datetime:
    return datetime.fromisoformat(json.loads(device.storage.journal.fact(HELD) or "{}")[slot]["until"])


def test_what_was_withdrawn_while_the_daemon_was_away_comes_back_at_once(device: Device) -> None:
    first = device.publish("1")
    assert device.ask(first) == "1"
    policy = device.policy(SLOW)
    assert device.ask(None, policy) == "1"
    device.now = until(device)
    device.control.fail = {"commit": AWAY}
    assert device.agent.poll().reason == "daemon"
    assert device.storage.active().slots == {}
    device.now += HOUR
    assert device.again() == ""
    assert device.ask(first, policy) == "1"


@pytest.mark.parametrize("reason", PROBLEMS)
@pytest.mark.parametrize("bad", ["aaa", "zzz"])
def test_a_slot_that_cannot_be_looked_at_keeps_no_other_from_its_turn(
    device: Device, spoil: Spoil, bad: str, reason: str
) -> None:
    device.ask(None, device.policy(SLOW))
    spoil(bad, PROBLEMS[reason])
    slots = {SLOT: device.publish("1"), bad: device.repository.add_release(bad, "1")}
    assert ask(device, slots, PATH).reason == reason
    turn = until(device)
    device.now = turn - timedelta(seconds=1)
    assert device.agent.poll().problem == str(PROBLEMS[reason])
    assert until(device) == turn
    device.now = turn
    assert device.agent.poll().reason == reason
    assert [update.slot for update in device.storage.journal.updates()] == [SLOT]


def test_the_first_problem_is_told(device: Device, spoil: Spoil) -> None:
    spoil("zzz", PROBLEMS["daemon"])
    spoil("aaa", PROBLEMS["below-floor"])
    slots = {name: device.repository.add_release(name, "1") for name in ("aaa", "zzz")}
    assert ask(device, slots).reason == "below-floor"


def test_a_withdrawal_waits_no_longer_for_a_slot_before_it_that_fails(device: Device, spoil: Spoil) -> None:
    assert device.ask(device.publish("1")) == "1"
    policy = device.policy(SLOW)
    device.ask(None, policy)
    turn = until(device)
    spoil("aaa", PROBLEMS["below-floor"])
    device.now += HOUR
    assert ask(device, {"aaa": device.repository.add_release("aaa", "1")}, policy).problem
    assert until(device) == turn
    device.now = turn
    assert device.agent.poll().reason == "below-floor"
    assert device.storage.active().slots == {}


def test_a_sight_lapses_also_while_another_slot_fails(device: Device, spoil: Spoil) -> None:
    policy, first = device.policy(SLOW), device.publish("1")
    device.ask(first, policy)
    turn = until(device)
    spoil("zzz", PROBLEMS["below-floor"])
    bad = {"zzz": device.repository.add_release("zzz", "1")}
    assert ask(device, bad, policy).problem
    device.now += DAY
    assert ask(device, {SLOT: first, **bad}, policy).problem
    assert until(device) == turn + DAY


def test_a_full_disk_ends_a_question_at_once_and_what_goes_makes_room(device: Device, spoil: Spoil) -> None:
    assert device.ask(device.publish("1")) == "1"
    policy = device.policy(SLOW)
    device.ask(None, policy)
    device.now = until(device)
    spoil("bbb", SpaceError("no room on the disk"))
    spoil("aaa", PROBLEMS["below-floor"])
    slots = {name: device.repository.add_release(name, "1") for name in ("aaa", "bbb", "ccc")}
    assert ask(device, slots, policy).reason == "store"
    assert "ccc" not in (device.storage.journal.fact(HELD) or "")
    assert device.storage.active().slots == {}


def test_what_is_begun_beside_a_withdrawal_is_not_swept_away_with_it(device: Device) -> None:
    policy = device.policy(FREE)
    assert device.ask(device.publish("1"), policy) == "1"
    assert not ask(device, {"zzz": device.repository.add_release("zzz", "1")}, policy).problem
    (update,) = device.storage.journal.updates()
    assert device.storage.blobs.verify(update.activation.release)
    assert device.storage.active().slots == {}
