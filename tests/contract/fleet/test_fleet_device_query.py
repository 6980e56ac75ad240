"""The query language of rollouts in SQL: `matches` defines it, on both databases; and the lists that take `query=`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.controller.access import Role
from fleet.controller.control.device_query import COMPARISONS_LIMIT, filter_of, selected
from fleet.controller.control.membership import device_of
from fleet.controller.database import alerts, devices, events
from fleet.controller.database.alerts import Alert
from fleet.controller.database.devices import Device, DeviceSelection, Running
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import RefusedError
from fleet.controller.database.events import Event
from fleet.controller.rollouts.query import And, FieldMatch, Not, Operator, Or, Query, matches
from fleet.controller.rollouts.query_parser import parse, query_text
from tests.simulators.controller import RunningController, controlling
from tests.simulators.databases import NOW, database
from tests.simulators.examples import examples

__all__ = ("database",)
WORDS = ("pilot", "Pilot", "lobby", "san jose", "50%", "a_b", "aXb", "[x]", "x", "cpu", "coral-usb", "ä", "1", "1.10")
GLOBS = ("*", "?", "p*", "*o*", "a_?", "[?]", "5*%", "coral-*", "?.*", "1*", "C*")
RELEASES = tuple(f"models/acme/reader/{version}/release" for version in ("1", "1.2", "1.10", "2-rc1", "2", "beta"))
RESERVED = ("settings/berlin/1.10/release", "settings/1.2/2/release", "software/edge-gateway/1/release")
TARGETS = (
    *(*RELEASES, *RESERVED, "", "models/acme/reader", "a/b/c/2/d/e", "models/acme/reader//release"),
    *("settings/berlin//release", "settings/berlin/1/other", "a/berlin/2/release"),
)
SLOTS = ("reader", "activity", "Reader", "@settings", "@software")
FIELDS = ("site", "profile", "tag", "accelerator", "slot", "id", *(f"version.{slot}" for slot in SLOTS))
ORDERED = (Operator.BELOW, Operator.AT_MOST, Operator.ABOVE, Operator.AT_LEAST)

values = st.sampled_from(WORDS + GLOBS + SLOTS)
equal = st.builds(
    FieldMatch,
    st.sampled_from(FIELDS),
    st.sampled_from((Operator.EQUAL, Operator.UNEQUAL)),
    st.lists(values, min_size=1, max_size=3).map(tuple),
)
ordered = st.builds(
    FieldMatch,
    st.sampled_from(("version.reader", "version.activity", "version.@settings")),
    st.sampled_from(ORDERED),
    st.sampled_from(("1", "1.2", "2", "beta", "*", "")).map(lambda value: (value,)),
)


def _joined(parts: st.SearchStrategy[Query]) -> st.SearchStrategy[Query]:
    several = st.lists(parts, min_size=2, max_size=3).map(tuple)
    return st.one_of(st.builds(Not, parts), st.builds(And, several), st.builds(Or, several))


queries = st.recursive(st.one_of(equal, ordered, st.just(parse("all"))), _joined, max_leaves=6)
running = st.dictionaries(st.sampled_from(SLOTS), st.sampled_from(TARGETS), max_size=3)
fleets = st.lists(
    st.tuples(
        st.sampled_from(WORDS),
        st.sampled_from(WORDS),
        st.frozensets(st.sampled_from(WORDS), max_size=3),
        st.lists(st.sampled_from(("cpu", "coral-usb", "Coral-pcie", "a_b")), max_size=2, unique=True).map(tuple),
        running,
    ),
    min_size=1,
    max_size=5,
)


def add(database: Database, name: str, described: tuple) -> None:
    """Add one device."""
    site, profile, tags, accelerators, slots = described
    with database.write() as connection:
        devices.enrol(connection, name, NOW)
        devices.label(connection, name, tags, site)
        devices.describe(connection, name, profile=profile, accelerators=accelerators, inventory={})
        runs = [Running(slot, target, "ab", "v", "cpu", "committed", NOW) for slot, target in slots.items()]
        devices.report(connection, name, runs, "ok")


def listed(database: Database, query: Query) -> list[Device]:
    """Return the devices that the database selects."""
    with database.read() as connection:
        wanted = DeviceSelection(matching=filter_of(connection, query))
        return list(devices.page(connection, wanted, database.settings, limit_rows=1_000))


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fleet=fleets, asked=st.lists(queries, min_size=1, max_size=8))
def test_the_database_selects_exactly_what_matches(database: Database, fleet: list, asked: list[Query]) -> None:
    for number, described in enumerate(fleet):
        add(database, f"device-{number}", described)
    everyone = listed(database, parse("all"))
    for query in asked:
        expected = [one.id for one in everyone if matches(query, device_of(one, {}))]
        assert [one.id for one in listed(database, query)] == expected, query_text(query)


@pytest.mark.parametrize("part", ["tag=a", "id=a", "slot=a", "tag!=a", "accelerator=a", "version.a<1", "site=b*"])
@pytest.mark.parametrize("joint", [" or ", " and "])
def test_the_longest_query_is_within_the_bounds_of_both_databases(database: Database, part: str, joint: str) -> None:
    add(database, "device", ("berlin", "rpi5", frozenset({"a"}), (), {}))
    count = 32 if "*" in part else COMPARISONS_LIMIT
    query = parse(joint.join([part] * count))
    expected = [one.id for one in listed(database, parse("all")) if matches(query, device_of(one, {}))]
    assert [one.id for one in listed(database, query)] == expected
    if "*" not in part:
        with pytest.raises(RefusedError, match="101 comparisons, at most 100"):
            listed(database, parse(joint.join([part] * (COMPARISONS_LIMIT + 1))))


def test_versions_are_compared_with_a_bounded_number_of_releases(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        described = ("", "", frozenset(), (), {"reader": f"models/acme/reader/{number}/release"})
        add(database, f"device-{number}", described)
    assert [one.id for one in listed(database, parse("version.reader >= 1"))] == ["device-1", "device-2"]
    monkeypatch.setattr("fleet.controller.database.device_filter.TARGETS_LIMIT", 2)
    with pytest.raises(RefusedError, match="more than 2 releases run in 'reader'"):
        listed(database, parse("version.reader >= 1"))


def test_a_filter_does_not_reach_removed_devices(database: Database) -> None:
    add(database, "device", ("", "", frozenset({"pilot"}), (), {}))
    with database.write() as connection:
        alerts.put(connection, [alert("a-1", "device"), alert("a-2", "")], tell=False)
        events.record(connection, [Event("device", "k", NOW, "rollback")], NOW, database.settings)
    assert counted(database, "tag = pilot") == (1, 1)
    assert counted(database, "tag = lobby") == (0, 0)
    assert counted(database, "") == (2, 1)
    with database.write() as connection:
        connection.exec_driver_sql("UPDATE devices SET removed = 1")
    assert counted(database, "all") == (0, 0)


def alert(key: str, device: str) -> Alert:
    return Alert(key, "silent", device, "", alerts.AlertState.OPEN, NOW, NOW, opened=NOW)


def counted(database: Database, query: str) -> tuple[int, int]:
    """Return how many alerts and events of matching devices there are."""
    with database.read() as connection:
        matching = selected(connection, query)
        found = alerts.page(connection, database.settings, matching=matching)
        return len(found), len(events.page(connection, database.settings, matching=matching))


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        now = running.clock()
        for name, tag, site in (("a-1", "pilot", "berlin"), ("a-2", "pilot", "bonn"), ("b-1", "lobby", "berlin")):
            running.enrolled(name, tags=[tag, "all"], site=site)
        with running.control.database.write() as connection:
            slot = Running("reader", RELEASES[0], "ab" * 32, "cpu-int8", "cpu", "committed", now)
            settings = Running("@settings", "settings/berlin/9/release", "ab" * 32, "", "", "committed", now)
            devices.report(connection, "a-1", [slot, settings], "ok")
            happened = [Event(name, "k", now, "rollback") for name in ("a-1", "b-1")]
            events.record(connection, happened, now, running.control.database.settings)
            opened = [replace(alert(f"k-{name}", name), since=now + timedelta(hours=1)) for name in ("a-1", "b-1", "")]
            alerts.put(connection, opened, tell=False)
        yield running


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("tag = pilot", ["a-1", "a-2"]),
        ("tag = pilot and site = berlin", ["a-1"]),
        ("version.reader < 2", ["a-1"]),
        ("not version.reader < 2", ["a-2", "b-1"]),
        ("version.@settings < 10 and slot = @settings", ["a-1"]),
        ("id = b-? or site in (bonn, rome)", ["a-2", "b-1"]),
        ("all", ["a-1", "a-2", "b-1"]),
    ],
)
def test_devices_are_listed_by_query_page_by_page(controller: RunningController, query: str, expected: list) -> None:
    found, after = [], ""
    with controller.client(Role.VIEWER) as viewer:
        while after is not None:
            page = viewer.get("/v1/devices", params={"query": query, "limit": 1, "after": after}).json()
            found += [device["id"] for device in page["items"]]
            after = page["next"]
    assert found == expected


def test_a_query_adds_to_other_filters_and_stays_within_the_scope(controller: RunningController) -> None:
    with controller.client(Role.VIEWER, tags=["pilot"]) as scoped:
        for path, name in (("devices", "id"), ("events", "device"), ("alerts", "device")):
            found = scoped.get(f"/v1/{path}", params={"query": "site = berlin or tag = lobby"}).json()["items"]
            assert [one[name] for one in found] == ["a-1"], path
        both = scoped.get("/v1/devices", params={"query": "site = berlin", "site": "bonn"}).json()["items"]
    assert both == []


def test_events_and_alerts_of_devices_that_match(controller: RunningController) -> None:
    with controller.client(Role.VIEWER) as viewer:
        for path in ("events", "alerts"):
            found = viewer.get(f"/v1/{path}", params={"query": "tag = lobby"}).json()["items"]
            assert [one["device"] for one in found] == ["b-1"], path


@pytest.mark.parametrize("path", ["devices", "events", "alerts"])
@pytest.mark.parametrize(
    ("query", "words"),
    [("tag =", "at character 6: expected a value"), ("colour = red", "at character 1"), ("x" * 4097, "query")],
)
def test_what_is_no_query_is_refused_where_it_is_wrong(
    controller: RunningController, path: str, query: str, words: str
) -> None:
    with controller.client(Role.VIEWER) as viewer:
        answer = viewer.get(f"/v1/{path}", params={"query": query})
    assert answer.status_code == 400
    assert words in answer.json()["detail"]
