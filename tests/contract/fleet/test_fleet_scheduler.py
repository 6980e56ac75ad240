"""The one replica that decides: who leads, what it forgets, what a bad rollout or a broken catalogue does to others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from fleet.controller.control import catalogue
from fleet.controller.control.catalogue import usable
from fleet.controller.control.rollouts import drafted
from fleet.controller.control.rollouts_preview import preview
from fleet.controller.control.rollouts_record import add
from fleet.controller.control.scheduler import zones_of
from fleet.controller.control.settings import SchedulerSettings
from fleet.controller.database import leader, releases
from fleet.controller.database.errors import AwayError, FencedError
from fleet.controller.database.releases import StoredRelease
from fleet.controller.database.tables import rollouts
from fleet.controller.rollouts.facts import Paused, Unattended
from fleet.controller.rollouts.state import Status
from fleet.publisher.repository import METADATA, TIMESTAMP_FILE
from gateway.common.domain.errors import ConfigurationError
from tests.simulators.rolled_fleet import SLOT, V3, RolledFleet, document, fleet, rolling

__all__ = ["fleet"]


def silently_dead(fleet: RolledFleet) -> None:
    """End the leader's machine, as the database sees it."""
    if fleet.database.place.file:
        fleet.now += timedelta(seconds=2 * fleet.database.settings.lease_s)
        return
    with fleet.database.write() as connection:
        locks = "SELECT pg_terminate_backend(l.pid) FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
        connection.execute(sa.text(f"{locks} WHERE locktype = 'advisory' AND d.datname = current_database()"))


def test_one_leads_and_after_its_death_another_goes_on_where_it_was(fleet: RolledFleet) -> None:
    fleet.enrol(f"d-{n}" for n in range(10))
    rollout = fleet.start(waves=[{"count": 3}, {"percent": 100}])
    fleet.turn()
    fleet.turn(scheduler=(second := fleet.replica("two")))
    assert (fleet.scheduler.leads, second.leads) == (True, False)
    first = fleet.members(rollout, "offered")
    fleet.report(rollout, first, "committed")
    silently_dead(fleet)
    third = fleet.replica("three")
    fleet.turn(1, scheduler=third)
    assert third.leads
    with fleet.database.read() as connection:
        assert leader.holder(connection) == "three"
    others = fleet.members(rollout, "offered")
    assert len(others) == 7
    facts = fleet.facts(rollout)
    fleet.enrol(["new"])
    with pytest.raises(FencedError):
        fleet.turn(1)
    assert not fleet.scheduler.leads
    assert fleet.facts(rollout) == facts
    fleet.turn(1)
    assert not fleet.scheduler.leads
    fleet.turn(1, scheduler=third)
    assert fleet.members(rollout, "offered") == sorted([*others, "new"])
    assert fleet.replayed(rollout)
    third.resign()


def test_a_leader_that_resigns_is_followed_at_once(fleet: RolledFleet) -> None:
    fleet.turn()
    fleet.scheduler.resign()
    fleet.scheduler.resign()
    fleet.turn(scheduler=(second := fleet.replica("two")))
    assert (fleet.scheduler.leads, second.leads) == (False, True)
    second.resign()


def test_what_others_recorded_meanwhile_is_read_before_anything_is_decided(fleet: RolledFleet) -> None:
    """Another replica takes the pause; this one's memory is of before."""
    fleet.enrol(f"d-{n}" for n in range(10))
    rollout = fleet.start(waves=[{"count": 3}, {"percent": 100}])
    fleet.turn()
    fleet.report(rollout, fleet.members(rollout, "offered"), "committed")
    settings = fleet.database.settings
    with fleet.database.write() as connection:
        known = fleet.replica("two")._rolling.states.read(connection, rollout, settings, lock=True)
        add(connection, known, [Paused("bob")], fleet.now, settings)
    fleet.turn(1)
    assert fleet.members(rollout, "offered") == []
    assert fleet.status(rollout) is Status.PAUSED


def test_a_rollout_that_cannot_be_read_does_not_stop_the_others(fleet: RolledFleet, caplog) -> None:
    fleet.enrol(f"d-{n}" for n in range(4))
    bad, good = fleet.start(slot="other"), fleet.start(waves=[{"percent": 100}])
    with fleet.database.write() as connection:
        connection.execute(sa.text("UPDATE rollouts SET spec = '{}' WHERE id = :id"), {"id": bad})
    fleet.rolling.states.forget()
    with caplog.at_level(logging.ERROR):
        fleet.turn()
    assert len(fleet.members(good, "offered")) == 4
    assert f"rollout evaluation crashed: {bad}; " in caplog.text


def test_a_rollout_that_could_not_be_read_was_not_looked_at(fleet: RolledFleet) -> None:
    fleet.enrol(["a"])
    rollout = fleet.start(waves=[{"percent": 100}])
    fleet.turn()
    with fleet.database.write() as connection:
        spec = connection.execute(sa.select(rollouts.c.spec)).scalar_one()
        connection.execute(sa.update(rollouts).values(spec={}))
    looked = fleet.now
    fleet.scheduler._rolling.states.forget()
    fleet.attend(300)
    with fleet.database.write() as connection:
        connection.execute(sa.update(rollouts).values(spec=spec))
    fleet.turn(1)
    assert [fact.event.since for fact in fleet.facts(rollout) if isinstance(fact.event, Unattended)] == [looked]


@contextmanager
def kept_waiting(folder: Path, count: int) -> Iterator[tuple[RolledFleet, Sequence[str], Callable[..., Connection]]]:
    """Yield so many rollouts, of one device each, the oldest first, and a function that locks the rows of some.

    The function does what an operator does who reads rows by hand in a transaction.
    """
    with rolling("postgresql", folder, busy_timeout_ms=100) as fleet, ExitStack() as stack:
        fleet.enrol(f"d-{n}" for n in range(count))
        found = []
        for number in range(count):
            fleet.now += timedelta(seconds=1)
            found.append(fleet.start(query=f"id = d-{number}", waves=[{"percent": 100}], silence_s=600))

        def hold(*held: str) -> Connection:
            by_hand = stack.enter_context(fleet.database.write())
            for rollout in held:
                by_hand.execute(sa.text("SELECT 1 FROM rollouts WHERE id = :id FOR UPDATE"), {"id": rollout})
            return by_hand

        yield fleet, found, hold


def test_a_rollout_that_the_database_keeps_waiting_does_not_stop_the_others(tmp_path: Path, caplog) -> None:
    with kept_waiting(tmp_path, 3) as (fleet, (held, *free), hold):
        by_hand = hold(held)
        with caplog.at_level(logging.WARNING):
            fleet.turn()
        assert [fleet.members(rollout, "offered") for rollout in (held, *free)] == [[], ["d-1"], ["d-2"]]
        assert f"rollout skipped: {held}: " in caplog.text
        by_hand.rollback()
        fleet.turn()
        assert fleet.members(held, "offered") == ["d-0"]
        assert fleet.scheduler.fence == 1


def test_what_keeps_two_rollouts_waiting_is_no_matter_of_theirs(tmp_path: Path) -> None:
    """A turn does not wait for each of them."""
    with kept_waiting(tmp_path, 3) as (fleet, all_of_them, hold):
        hold(*all_of_them)
        with pytest.raises(AwayError, match="lock timeout"):
            fleet.turn()
        assert not fleet.scheduler.leads


def test_nobody_is_passed_over_by_who_lost_the_office(tmp_path: Path) -> None:
    with kept_waiting(tmp_path, 2) as (fleet, (held, free), hold):
        fleet.scheduler._stand(fleet.now)
        hold(held)
        silently_dead(fleet)
        with pytest.raises(FencedError):
            fleet.turn()
        assert fleet.members(free, "offered") == []


@pytest.mark.parametrize("follower", [False, True])
def test_a_rollout_that_was_passed_over_was_not_looked_at(tmp_path: Path, *, follower: bool) -> None:
    """Nor does who leads next believe so."""
    with kept_waiting(tmp_path, 2) as (fleet, (held, free), hold):
        fleet.turn()
        fleet.attend(540)
        looked, by_hand = fleet.now, hold(held)
        fleet.attend(600)
        by_hand.rollback()
        if follower:
            silently_dead(fleet)
        fleet.turn(1, scheduler=fleet.replica("two") if follower else None)
        assert [fact.event.since for fact in fleet.facts(held) if isinstance(fact.event, Unattended)] == [looked]
        assert fleet.members(free, "silent") == ["d-1"]
        assert fleet.replayed(held)


def test_what_is_published_meanwhile_is_known_in_the_next_turn(fleet: RolledFleet, caplog) -> None:
    fleet.turn()
    fleet.repository.add_release("meter-reader", "7")
    fleet.turn(1)
    assert fleet.draft(target="acme/meter-reader/7")
    (fleet.repository.public / METADATA / TIMESTAMP_FILE).write_text("{")
    with caplog.at_level(logging.WARNING):
        fleet.turn(1)
        fleet.turn(1)
    assert caplog.text.count("releases not read: ") == 1
    assert fleet.draft(target="acme/meter-reader/7")
    with caplog.at_level(logging.WARNING):
        fleet.turn(61)
    assert caplog.text.count("releases not read: ") == 2


def test_a_leader_that_stood_still_withdraws_nothing_that_was_published_since(
    fleet: RolledFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the folder, and goes on when another one leads and has read it, too."""
    read, followed, verified = threading.Event(), threading.Event(), catalogue.verified_releases

    def stalled(*said: object) -> Iterator[StoredRelease]:
        found = [*verified(*said)]  # type: ignore[arg-type]
        if not read.is_set():
            read.set()
            followed.wait()
        yield from found

    fleet.enrol(["a"])
    monkeypatch.setattr(catalogue, "verified_releases", stalled)
    second = fleet.replica("two")
    with ThreadPoolExecutor() as pool:
        turn = pool.submit(fleet.turn)
        try:
            assert read.wait(60)
            fleet.repository.add_release(SLOT, "3")
            silently_dead(fleet)
            fleet.turn(scheduler=second)
            rollout = fleet.start(target="acme/meter-reader/3")
        finally:
            followed.set()
        with pytest.raises(FencedError):
            turn.result()
    with fleet.database.read() as connection:
        assert usable(connection, V3) == ""
    fleet.turn(1, scheduler=second)
    assert fleet.members(rollout, "offered") == ["a"]
    second.resign()


def test_who_leads_anew_reads_anew_what_is_published(fleet: RolledFleet) -> None:
    """Another replica led in between, and its copy of the folder was an older one."""
    fleet.turn()
    fleet.scheduler.resign()
    with fleet.database.write() as connection:
        releases.synchronise(connection, [], fleet.now, fleet.database.settings)
    fleet.turn(1)
    assert fleet.draft()


@pytest.mark.parametrize("entry", ["berlin", "=Europe/Berlin", "berlin=", "berlin=Europe/Nowhere"])
def test_a_site_needs_a_time_zone_that_there_is(entry: str) -> None:
    with pytest.raises(ConfigurationError, match=r"scheduler\.zones"):
        zones_of(SchedulerSettings(zones=(entry,)))
    assert zones_of(SchedulerSettings(zones=("a=b=Europe/Berlin",))) == {"a=b": "Europe/Berlin"}


def test_all_rollouts_count_however_many_there_are(tmp_path: Path) -> None:
    """More than one page of them."""
    with rolling("sqlite", tmp_path, page_limit_rows=1) as fleet:
        fleet.enrol(f"d-{n}" for n in range(3))
        for number in range(3):
            fleet.now += timedelta(seconds=1)
            fleet.start(query=f"id = d-{number}", waves=[{"percent": 100}])
        fleet.turn()
        with fleet.database.read() as connection:
            spec = drafted(connection, document())
        assert (preview(fleet.rolling, spec).devices, preview(fleet.rolling, spec).held) == (3, 3)
