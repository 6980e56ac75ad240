"""The work grows with the number of devices and no faster. Calls are counted, nothing is timed."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from fleet.controller.rollouts.decide import decide
from fleet.controller.rollouts.facts import Decided, Fact, Joined, Reported
from fleet.controller.rollouts.fold import fold
from fleet.controller.rollouts.members import membership
from fleet.controller.rollouts.query import QueriedDevice
from fleet.controller.rollouts.replay import replay
from tests.simulators.rollouts import DIGEST, Record, offered, spec_of

KINDS = ("hailo-8", "coral-usb", "nvidia-gpu", "cpu")
WINDOW = {"start": "00:00", "end": "00:00", "zone": "site"}
SIZES = (1000, 2000, 4000)


def calls(work: Callable[[], object]) -> int:
    """Return how many functions, Python's and C's, are called."""
    count = 0

    def seen(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def started(devices: int) -> Record:
    spec = spec_of(canary={"per_accelerator": 2, "soak_s": 0}, waves=[{"percent": 100}], windows=[WINDOW])
    return Record(spec).start(Joined(f"d-{n}", (KINDS[n % 4],), "Europe/Berlin") for n in range(devices))


def all_offered(devices: int) -> Record:
    """Return a record in which canaries committed, and all other devices hold an offer."""
    record = started(devices)
    for device in offered(record.tick()):
        record.report(device, "committed")
    assert len(offered(record.tick())) == devices - 8
    return record


def opening(devices: int) -> Callable[[], object]:
    record = started(devices)
    for device in offered(record.tick()):
        record.report(device, "committed")
    return lambda: decide(record.spec, record.state, record.now)


def nothing_to_do(devices: int) -> Callable[[], object]:
    record = all_offered(devices)
    return lambda: decide(record.spec, record.state, record.now)


def all_silent(devices: int) -> Callable[[], object]:
    record = all_offered(devices)
    later = record.now.replace(hour=record.now.hour + 2)
    return lambda: decide(record.spec, record.state, later)


def folding(devices: int) -> Callable[[], object]:
    record = all_offered(devices)
    return lambda: fold(record.spec, record.facts)


def replaying(devices: int) -> Callable[[], object]:
    record = all_offered(devices)
    return lambda: replay(record.spec, record.facts)


def matching(devices: int) -> Callable[[], object]:
    record = started(0)
    fleet = [QueriedDevice(f"d-{n}") for n in range(devices)]
    return lambda: membership(record.spec, record.state, fleet)


@pytest.mark.parametrize("work", [opening, nothing_to_do, all_silent, folding, replaying, matching])
def test_twice_the_devices_are_twice_the_work(work):
    small, middle, large = (calls(work(devices)) for devices in SIZES)
    assert middle < 2.1 * small
    assert large < 2.1 * middle


def test_one_report_costs_the_same_in_a_large_rollout_as_in_a_small_one():
    costs = []
    for devices in SIZES:
        record = all_offered(devices)
        fact = Fact(len(record.facts) + 1, record.now, Reported("d-7", "downloading", DIGEST))
        costs.append(calls(lambda record=record, fact=fact: fold(record.spec, [fact], record.state)))
    assert costs[0] == costs[1] == costs[2] < 80


def test_ten_thousand_devices_are_decided_and_the_record_replays():
    record = all_offered(10_000)
    assert sum(isinstance(fact.event, Decided) for fact in record.facts) == 10_002
    assert replay(record.spec, record.facts).difference is None
