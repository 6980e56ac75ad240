"""Assignments by hand are not lost to a rollout that offers something before the device's first poll.

This holds whichever of the two comes first, and while the other one is in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from fleet.controller.control.director_before import ByHand
from fleet.controller.control.slot_ownership import carry_out
from fleet.controller.database import assignments, desired
from fleet.controller.database.engine import Connection, Database
from fleet.controller.rollouts.decisions import Decision, Offer, RollBack
from fleet.controller.rollouts.facts import Aborted, RollbackRequested
from gateway.common.domain.assignment import Assignment, Target
from tests.simulators.databases import waiting
from tests.simulators.rolled_fleet import BEGIN, SLOT, V1, V2, V3, RolledFleet, fleet, rolling

__all__ = ["fleet"]
DEVICE = "camera-1"
ALL = [{"percent": 100}]
OFFER, BACK = Offer(DEVICE, 0, 1), RollBack(DEVICE)
WAIT_S = 30


def adopt(fleet: RolledFleet, connection: Connection) -> None:
    """Carry out the device's first poll."""
    published = fleet.repository.published.target(V1)
    assert published
    target = Target(V1, published.length, published.hashes["sha256"])
    by_hand = Assignment(DEVICE, 7, BEGIN, BEGIN + timedelta(days=1), {SLOT: target})
    assignments.next_version(connection, DEVICE)
    assert ByHand(by_hand).adopt(connection, fleet.now, fleet.database.settings) == 8


def decide(fleet: RolledFleet, rollout: str, decision: Decision, connection: Connection) -> None:
    """Carry out a decision like a tick does it."""
    carry_out(connection, fleet.known(rollout), [decision], fleet.now, fleet.database.settings)


def wanted(fleet: RolledFleet) -> tuple[str, str]:
    """Return what the device is to run, and because of which rollout."""
    one = fleet.desired([DEVICE])[DEVICE]
    return one.target, one.rollout


def test_what_was_assigned_by_hand_comes_back_after_an_offer_that_came_first(fleet: RolledFleet) -> None:
    fleet.enrol([DEVICE])
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    with fleet.database.write() as connection:
        adopt(fleet, connection)
    assert wanted(fleet) == (V2, rollout)
    fleet.say(rollout, Aborted("ann"))
    fleet.turn(1)
    assert wanted(fleet) == (V1, "")


def test_it_comes_back_when_two_rollouts_came_first(fleet: RolledFleet) -> None:
    fleet.publish("3")
    fleet.enrol([DEVICE])
    first = fleet.start(waves=ALL)
    fleet.turn()
    fleet.report(first, [DEVICE], "committed")
    fleet.say(first, Aborted("ann"))
    fleet.turn(1)
    second = fleet.start(target="acme/meter-reader/3", waves=ALL)
    fleet.turn(1)
    assert wanted(fleet) == (V3, second)
    with fleet.database.write() as connection:
        adopt(fleet, connection)
    fleet.say(second, Aborted("ann"))
    fleet.turn(1)
    assert wanted(fleet) == (V2, first)
    fleet.say(first, RollbackRequested("ann"))
    fleet.turn(1)
    assert wanted(fleet) == (V1, "")


def test_it_is_what_runs_where_an_offer_was_withdrawn_before(fleet: RolledFleet) -> None:
    fleet.enrol([DEVICE])
    rollout = fleet.start(waves=ALL)
    fleet.turn()
    fleet.say(rollout, Aborted("ann"))
    fleet.turn(1)
    with fleet.database.write() as connection:
        adopt(fleet, connection)
    assert wanted(fleet) == (V1, "")


# ---- both at once ----------------------------------------------------------------------------------------------------
@pytest.fixture
def shared(tmp_path: Path) -> Iterator[RolledFleet]:
    """Yield a fleet on PostgreSQL, where two write at once."""
    with rolling("postgresql", tmp_path) as made:
        made.enrol([DEVICE])
        yield made


Deed = Callable[[Connection], None]


def both(database: Database, first: Deed, second: Deed) -> None:
    """Begin the second when the first is done and not committed; it waits for a lock of the first."""

    def follow() -> None:
        with database.write() as connection:
            second(connection)

    with ThreadPoolExecutor(1) as threads:
        with database.write() as connection:
            first(connection)
            following = threads.submit(follow)
            while not following.done() and not waiting(database):
                pass
            assert not following.done()
        following.result(WAIT_S)


def test_a_device_that_asks_while_it_is_offered_something_does_not_undo_that(shared: RolledFleet) -> None:
    rollout = shared.start(waves=ALL)
    both(shared.database, partial(decide, shared, rollout, OFFER), partial(adopt, shared))
    assert wanted(shared) == (V2, rollout)
    with shared.database.write() as connection:
        decide(shared, rollout, BACK, connection)
    assert wanted(shared) == (V1, "")


def test_an_offer_to_a_device_that_asks_just_then_remembers_what_it_had(shared: RolledFleet) -> None:
    rollout = shared.start(waves=ALL)
    both(shared.database, partial(adopt, shared), partial(decide, shared, rollout, OFFER))
    assert wanted(shared) == (V2, rollout)
    with shared.database.write() as connection:
        decide(shared, rollout, BACK, connection)
    assert wanted(shared) == (V1, "")


def test_an_offer_that_is_withdrawn_while_the_device_asks_leaves_it_what_it_had(shared: RolledFleet) -> None:
    rollout = shared.start(waves=ALL)
    for first, second in permutations((partial(adopt, shared), partial(decide, shared, rollout, BACK))):
        with shared.database.write() as connection:
            desired.remove(connection, [DEVICE], SLOT)
            decide(shared, rollout, OFFER, connection)
        both(shared.database, first, second)
        assert wanted(shared) == (V1, "")
