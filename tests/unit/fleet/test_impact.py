"""Impact of a publication: what it bars, and how many devices run that."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.publisher.impact import impacts
from tests.simulators.fleet_repository import FleetRepository

FIRST, SECOND = "models/acme/meter/1/release", "models/acme/meter/2/release"
RUNNING = {("meter", FIRST): 12, ("meter", SECOND): 1, ("door", "models/acme/door/1/release"): 5}


@pytest.fixture
def repository(tmp_path: Path) -> FleetRepository:
    made = FleetRepository(tmp_path)
    for model, version in (("meter", "1"), ("meter", "2"), ("door", "1")):
        made.add_release(model, version)
    return made


def test_a_floor_names_what_falls_below_it(repository: FleetRepository) -> None:
    before = repository.published
    repository.add_release("meter", "3", floor="2")
    (found,) = impacts(RUNNING, before, repository.published)
    assert (found.target, found.slot, found.devices, found.stops) == (FIRST, "meter", 12, False)
    assert "12 devices run models/acme/meter/1/release in the slot meter" in found.sentence
    assert not [*impacts(RUNNING, repository.published, repository.published)]


def test_a_withdrawal_and_an_order_to_stop_are_told_apart(repository: FleetRepository) -> None:
    before = repository.published
    repository.withdraw("meter", "2", "offer")
    (offer,) = impacts(RUNNING, before, between := repository.published)
    assert not offer.stops
    repository.withdraw("meter", "2", "remove")
    (order,) = impacts(RUNNING, between, repository.published)
    assert order.stops
    assert "1 device run" in order.sentence
    assert "ORDERED TO STOP" in order.sentence
