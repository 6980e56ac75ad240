"""Changes in the order in which they became visible: positions, gaps, and transactions that end in another order."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from fleet.controller.access import Role
from fleet.controller.control.changes import Change, ChangeFilter, ChangeReader, Position, read_position
from fleet.controller.database import (
    alerts,
    changes,
    devices,
    diagnostics,
    enrolment,
    events,
    numbers,
    rollouts,
    tokens,
)
from fleet.controller.database.alerts import Alert, AlertState
from fleet.controller.database.changes import ChangeKind
from fleet.controller.database.credentials import new_credential
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import RefusedError
from fleet.controller.database.events import Event, StoredEvent
from fleet.controller.database.rollouts import NewFact, StoredRollout
from tests.simulators.constants import settings_with
from tests.simulators.databases import NOW, database, enrolled, made

__all__ = ("database",)
HOUR = timedelta(hours=1)


def happens(opened: Database, *keys: str, device: str = "camera", at=NOW) -> None:
    with opened.write() as connection:
        events.record(connection, [Event(device, key, at, "rollback") for key in keys], at, opened.settings)


def opens(opened: Database, key: str, state: AlertState = AlertState.OPEN, device: str = "camera") -> None:
    closed = NOW if state is AlertState.CLOSED else None
    with opened.write() as connection:
        alerts.put(connection, [Alert(key, "silent", device, "", state, NOW, NOW, NOW, closed)], tell=False)


def drafted(opened: Database, rollout: str, query: str = "all") -> None:
    with opened.write() as connection:
        rollouts.create(connection, StoredRollout(rollout, "n", "s", "t", "draft", {"query": query}, NOW, "ann"))


def recorded(opened: Database, rollout: str, *facts: str) -> None:
    """Record facts about these devices; "": about the rollout."""
    with opened.write() as connection:
        rollouts.record(connection, rollout, [NewFact(NOW, "x", device) for device in facts], opened.settings)


def everything(feed: ChangeReader, after: Position) -> list[Change]:
    found: list[Change] = []
    more = True
    while more:
        page = feed.read(after)
        found, after, more = [*found, *page.changes], page.reached, page.more
    return found


def said(found: Iterable[Change]) -> list[str]:
    return [f"{change.position} {change.kind}" for change in found]


def test_what_is_recorded_is_read_in_its_order(database: Database) -> None:
    enrolled(database, "camera")
    drafted(database, "r1")
    feed = ChangeReader(database, 100)
    begin = feed.now()
    happens(database, "one", "two")
    opens(database, "a", AlertState.PENDING)
    opens(database, "a")
    opens(database, "a")  # it goes on: no change
    recorded(database, "r1", "", "camera", "camera")
    opens(database, "a", AlertState.CLOSED)
    happens(database, "two", "three")  # one is known
    assert said(everything(feed, begin)) == [
        "1 device.event",
        "2 device.event",
        "3 alert.opened",
        "4.1 rollout.fact",
        "4.2 rollout.device_fact",
        "4 rollout.device_fact",
        "5 alert.closed",
        "6 device.event",
    ]


@pytest.mark.parametrize("page", [1, 2, 3, 100])
def test_behind_each_position_follows_the_rest_and_nothing_else(database: Database, page: int) -> None:
    enrolled(database, "camera")
    drafted(database, "r1")
    recorded(database, "r1", "", "camera", "camera", "", "camera")
    happens(database, "one", "two")
    recorded(database, "r1", "camera", "")
    feed = ChangeReader(database, page)
    whole = everything(feed, Position(0))
    assert len(whole) == 9
    for place, change in enumerate(whole, 1):
        assert everything(feed, read_position(str(change.position))) == whole[place:]


def test_a_change_never_names_what_came_later(database: Database) -> None:
    """The newest event is deleted with its device; SQLite alone would give its id again."""
    enrolled(database, "camera", "gone")
    happens(database, "one")
    happens(database, "two", device="gone")
    with database.write() as connection:
        devices.empty(connection, "gone")
    happens(database, "three")
    found = everything(ChangeReader(database, 100), Position(0))
    told = [change.about.event.key if isinstance(change.about, StoredEvent) else None for change in found]
    assert told == ["one", None, "three"]


def test_ids_that_are_remembered_elsewhere_are_not_given_again(database: Database) -> None:
    """A script may repeat a revocation by number, a device what it answered."""
    enrolled(database, "camera")

    def ids() -> tuple[int, ...]:
        given = {"expires": NOW + HOUR, "now": NOW, "by": "ann"}
        with database.write() as connection:
            settings, secret = database.settings, new_credential("x_")
            return (
                enrolment.create(connection, secret, settings, device="camera", **given),
                tokens.create(connection, secret, settings, name="n", role=Role.VIEWER, **given),
                diagnostics.ask(connection, "camera", {}, settings, **given),
            )

    first = ids()
    with database.write() as connection:
        enrolment.void(connection, "camera")
        tokens.forget(connection, NOW + 2 * HOUR)
        devices.empty(connection, "camera")
    second = ids()
    with database.write() as connection:
        numbers.leap(connection, 1_000)  # as after a restore
    third = ids()
    assert all(one < other < another - 999 for one, other, another in zip(first, second, third, strict=True))


def test_of_two_transactions_the_one_that_commits_last_is_not_missed(tmp_path: Path) -> None:
    """PostgreSQL gives the first one the smaller number, and shows the other one's change before."""
    with made("postgresql", tmp_path) as opened:
        enrolled(opened, "camera", "other")
        feed = ChangeReader(opened, 100)
        with ExitStack() as late:
            connection = late.enter_context(opened.write())
            events.record(connection, [Event("camera", "early", NOW, "x")], NOW, opened.settings)
            happens(opened, "after", device="other")
            with opened.read() as looking:
                assert changes.newest(looking) == 2  # visible, and not to be read before number 1 is decided
            before = feed.read(Position(0))
            assert (said(before.changes), before.reached, feed.now()) == ([], Position(0), Position(0))
        assert said(everything(feed, before.reached)) == ["1 device.event", "2 device.event"]


def test_a_transaction_that_is_undone_holds_up_no_reader(tmp_path: Path) -> None:
    with made("postgresql", tmp_path) as opened:
        enrolled(opened, "camera")
        feed = ChangeReader(opened, 100)
        with opened.write() as connection:
            events.record(connection, [Event("camera", "gone", NOW, "x")], NOW, opened.settings)
            connection.rollback()
        happens(opened, "stays")
        assert said(everything(feed, Position(0))) == ["2 device.event"]


@pytest.mark.parametrize(
    ("held", "last", "expected"), [(5, 9, 5), (9, 9, 9), (12, 9, 9), (2**31 - 1, 2**31 + 4, 2**31 - 1)]
)
def test_a_lock_names_a_number_in_a_cycle(held: int, last: int, expected: int) -> None:
    assert changes._floor(held % 2**31, last) == expected


def test_what_is_swept_is_a_gap_and_the_rest_follows(database: Database) -> None:
    enrolled(database, "camera")
    settings = replace(database.settings, changes_age_limit_d=1.0)
    happens(database, "one", "two", at=NOW)
    happens(database, "three", at=NOW + 23 * HOUR)
    with database.write() as connection:
        assert changes.sweep(connection, NOW + 25 * HOUR, settings) == 2
        assert changes.sweep(connection, NOW + 99 * HOUR, settings) == 0  # the newest stays
    feed = ChangeReader(database, 100)
    assert said(everything(feed, Position(1))) == ["2 gap", "3 device.event"]
    assert said(everything(feed, Position(2))) == ["3 device.event"]
    assert said(everything(feed, Position(2, 1))) == ["2 gap", "3 device.event"]


def test_more_than_the_limit_is_swept_a_little_at_a_time(database: Database) -> None:
    enrolled(database, "camera")
    telemetry = settings_with(database.settings.telemetry, sweep_rows=2)
    settings = settings_with(database.settings, changes_limit_rows=2, telemetry=telemetry)
    happens(database, *"abcde")
    with database.write() as connection:
        assert [changes.sweep(connection, NOW, settings) for _ in range(3)] == [2, 1, 0]
    assert said(everything(ChangeReader(database, 100), Position(0))) == ["3 gap", "4 device.event", "5 device.event"]


def test_a_position_of_another_database_is_a_gap(database: Database) -> None:
    enrolled(database, "camera")
    happens(database, "one")
    feed = ChangeReader(database, 100)
    page = feed.read(Position(41))
    assert (said(page.changes), page.reached) == (["1 gap"], Position(1))


def test_after_a_restore_programs_that_were_further_ahead_are_told(database: Database) -> None:
    """A jump of the numbers, as `backup restore` makes it: numbers of the lost controller are not given again."""
    enrolled(database, "camera")
    happens(database, "one")
    with database.write() as connection:
        changes.leap(connection, 1_000)
    happens(database, "two")
    feed = ChangeReader(database, 100)
    assert said(everything(feed, Position(1))) == ["1001 gap", "1002 device.event"]
    assert said(everything(feed, Position(7))) == ["1001 gap", "1002 device.event"]


def test_events_that_were_pushed_out_are_a_gap_for_those_who_want_events(database: Database) -> None:
    enrolled(database, "camera")
    happens(database, *"abcd")
    opens(database, "a")
    with database.write() as connection:
        connection.execute(sa.text("DELETE FROM events WHERE id <= 3"))
    feed = ChangeReader(database, 100)
    found = feed.read(Position(0)).changes
    assert [(str(change.position), change.about is None) for change in found] == [
        ("3", True),
        ("4", False),
        ("5", False),
    ]
    for wanted, count in (
        (ChangeFilter(device="camera"), 3),
        (ChangeFilter(device="other", scope=frozenset({"x"})), 1),
        (ChangeFilter(frozenset({ChangeKind.ALERT_OPENED})), 1),
        (ChangeFilter(frozenset({ChangeKind.DEVICE_EVENT}), query="tag = x"), 1),
    ):
        assert len(feed.visible(found, wanted)) == count, wanted


@pytest.mark.parametrize("text", ["", "x", "-1", "1.", ".1", "1.2.3", "²", "1" * 19])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(RefusedError):
        read_position(text)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (ChangeFilter(), "event event opened opened fact fact"),
        (ChangeFilter(frozenset({ChangeKind.ALERT_OPENED})), "opened opened"),
        (ChangeFilter(device="camera"), "event opened fact"),
        (ChangeFilter(rollout="r1"), "fact fact"),
        (ChangeFilter(query="tag = pilot"), "event opened fact"),
        (ChangeFilter(query="tag = nowhere"), ""),
        (ChangeFilter(scope=frozenset({"pilot"})), "event opened"),
        (ChangeFilter(scope=frozenset({"lobby"})), "event fact fact"),
        (ChangeFilter(scope=frozenset({"pilot"}), query="tag = lobby"), ""),
    ],
)
def test_who_gets_what(database: Database, wanted: ChangeFilter, expected: str) -> None:
    enrolled(database, "camera", "other")
    with database.write() as connection:
        devices.label(connection, "camera", ["pilot"], "")
        devices.label(connection, "other", ["lobby"], "")
    drafted(database, "r1", "tag = lobby")
    happens(database, "one")
    happens(database, "one", device="other")
    opens(database, "a")
    opens(database, "of the fleet", device="")
    recorded(database, "r1", "", "camera")
    feed = ChangeReader(database, 100)
    found = feed.visible(feed.read(Position(0)).changes, wanted)
    names = {ChangeKind.DEVICE_EVENT: "event", ChangeKind.ALERT_OPENED: "opened"}
    assert " ".join(names.get(change.kind, "fact") for change in found) == expected


def test_an_alert_of_a_device_that_had_the_name_before_is_not_shown(database: Database) -> None:
    """Changes and lists follow the same rule."""
    enrolled(database, "camera")
    with database.write() as connection:
        devices.label(connection, "camera", ["pilot"], "")
        old = Alert("a", "silent", "camera", "", AlertState.OPEN, NOW - HOUR, NOW, NOW)
        alerts.put(connection, [old], tell=False)
    feed = ChangeReader(database, 100)
    assert not feed.visible(feed.read(Position(0)).changes, ChangeFilter(scope=frozenset({"pilot"})))
