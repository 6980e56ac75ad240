"""Whatever text comes in through any parameter of any function stays text, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from fleet.controller.access import Role
from fleet.controller.audit import Deed, Head
from fleet.controller.database import (
    alerts,
    assignments,
    audit,
    authority,
    certificates,
    desired,
    devices,
    diagnostics,
    enrolment,
    events,
    labels,
    leader,
    polling,
    releases,
    rollouts,
    sweep,
    tables,
    tail,
    telemetry,
    tokens,
    watching,
)
from fleet.controller.database.credentials import Credential, new_credential
from fleet.controller.database.device_filter import Filter
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import DatabaseError
from fleet.controller.database.settings import DatabaseSettings
from fleet.controller.database.tables import NAME_BYTES
from tests.simulators.constants import settings_with
from tests.simulators.databases import ALIKE, KINDS, NOW, content, enrolled, made
from tests.simulators.examples import examples

ROOMS = (
    alerts,
    assignments,
    audit,
    authority,
    certificates,
    desired,
    devices,
    diagnostics,
    enrolment,
    events,
    labels,
    leader,
    polling,
    releases,
    rollouts,
    sweep,
    tail,
    telemetry,
    tokens,
    watching,
)
FUNCTIONS = [
    function
    for room in ROOMS
    for name, function in inspect.getmembers(room, inspect.isfunction)
    if function.__module__ == room.__name__ and not name.startswith("_")
    and next(iter(inspect.signature(function).parameters), "") == "connection"
]  # fmt: skip
ODD = ("'", '"', "\\", "--", "/*", "%", "_", ";", "\0", "\ud800", "${x}", ":x", "%s", "%(x)s", "\n", "$$", "é")
OUTCOMES = {"done", "AbsentError", "ConflictError", "RefusedError", "TokenRefusedError", "FencedError"}
ATTACKS = (
    "'; DROP TABLE audit; --",
    "' OR '1'='1",
    "') OR 1=1 --",
    '"; DELETE FROM devices; --',
    "1); ATTACH 'x' AS y; --",
    "'||(SELECT digest FROM api_tokens)||'",
    "\\'; SELECT pg_sleep(9); --",
    "camera-1' UNION SELECT 1 --",
    "x" * 70_000,
)
HOSTILE = st.one_of(
    st.text(max_size=40),
    st.sampled_from(ODD).flatmap(lambda odd: st.text(max_size=5).map(lambda text: f"x{odd}{text}")),
    st.sampled_from(ATTACKS),
)
PLAIN: Mapping[Any, Any] = {
    int: 77,
    bool: True,
    float: 1.0,
    bytes: b"{}",
    datetime: NOW,
    Role: Role.VIEWER,
    devices.EnrolmentState: devices.EnrolmentState.ENROLLED,
    alerts.AlertState: alerts.AlertState.OPEN,
    DatabaseSettings: settings_with(DatabaseSettings(), page_limit_rows=50),
    Credential: new_credential("t_"),
    Filter: sa.true(),
}


def test_every_function_that_takes_text_is_found() -> None:
    named = {f"{function.__module__.rpartition('.')[2]}.{function.__name__}" for function in FUNCTIONS}
    assert {"devices.enrol", "devices.page", "telemetry.receive", "rollouts.record", "audit.append"} <= named
    assert len(named) > 50


def value_for(kind: Any, text: str) -> Any:
    """Return a value of this type whose every text is `text`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is str or origin in {Callable, typing.Literal}:
        return text if kind is str else inner[-1] if origin is typing.Literal else lambda: value_for(inner[1], text)
    if kind in PLAIN:
        return PLAIN[kind]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        if kind.__name__.endswith("Settings"):
            return kind()
        fields = {field.name: value_for(hints[field.name], text) for field in dataclasses.fields(kind)}
        return kind(**fields)
    if origin in {tuple, frozenset} or (
        isinstance(origin, type) and issubclass(origin, typing.Iterable) and not issubclass(origin, Mapping)
    ):
        items = [value_for(each, text) for each in inner if each is not Ellipsis]
        return frozenset(items) if origin is frozenset else tuple(items)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {text: value_for(inner[1], text)}
    if kind is object or kind is Any:
        return [text, {text: text}]
    return value_for(next(each for each in inner if each is not type(None)), text)


def arguments(function: Callable[..., Any], text: str) -> dict[str, Any]:
    hints = typing.get_type_hints(function)
    names = [name for name in inspect.signature(function).parameters if name != "connection"]
    return {name: value_for(hints[name], text) for name in names}


@contextmanager
def guarded(database: Database) -> Iterator[None]:
    """Check that rows of "canary", which the block does not name, are left as they were."""
    before = content(database)
    yield
    after = content(database)
    assert after.keys() == before.keys()
    for table, rows in before.items():
        assert {row for row in rows if "canary" in row} <= set(after[table]), table
    with database.read() as connection:
        assert isinstance(audit.verify(connection, DatabaseSettings()), Head)


def canaries(database: Database) -> None:
    """Write a row into every table that functions remove from or change."""
    enrolled(database, "canary")
    late = datetime(2100, 1, 1, tzinfo=UTC)
    given = {"expires": late, "now": NOW, "by": "canary"}
    with database.write() as connection:
        devices.label(connection, "canary", ["canary"], "canary")
        devices.report(connection, "canary", [value_for(devices.Running, "canary")], "canary")
        devices.touch(connection, {"canary": NOW})
        certificates.add(connection, certificates.Certificate("canary", "canary", NOW, late))
        enrolment.create(connection, new_credential("e_"), DatabaseSettings(), site="canary", **given)
        tokens.create(connection, new_credential("c_"), DatabaseSettings(), name="canary", role=Role.ADMIN, **given)
        rollouts.create(connection, value_for(rollouts.StoredRollout, "canary"))
        rollouts.record(connection, "canary", [value_for(rollouts.NewFact, "canary")], DatabaseSettings())
        desired.put(connection, [value_for(desired.Desired, "canary")], DatabaseSettings())
        assignments.put(connection, value_for(assignments.StoredAssignment, "canary"))
        events.record(connection, [value_for(events.Event, "canary")], NOW, DatabaseSettings())
        diagnostics.ask(connection, "canary", {}, DatabaseSettings(), **given)
        alerts.put(connection, [value_for(alerts.Alert, "canary")], tell=True)
        audit.append(connection, Deed("canary", "canary", "canary"), NOW)
    assert sum("canary" in row for rows in content(database).values() for row in rows) >= 14


def attempt(database: Database, action: Callable[[Connection], object]) -> str:
    """Return how the action ended: "done" or the name of the error."""
    try:
        with database.write() as connection:
            action(connection)
    except DatabaseError as refused:
        return type(refused).__name__
    return "done"


def create(database: Database, texts: Iterable[str]) -> None:
    """Create a device and a rollout of each of these names, unless they exist."""
    with database.read() as connection:
        known = [
            set(connection.scalars(sa.select(table.c[key])))
            for table, key in ((tables.devices, "id"), (tables.rollouts, "id"))
        ]
    for text in texts:
        if text not in known[0]:
            attempt(database, lambda connection, text=text: devices.enrol(connection, text, NOW))
        if text not in known[1]:
            rollout = value_for(rollouts.StoredRollout, text)
            attempt(database, lambda connection, rollout=rollout: rollouts.create(connection, rollout))


def tried(database: Database, function: Callable[..., Any], text: str) -> str:
    """Call a function with `text` everywhere; return how it ended."""
    outcome = attempt(database, lambda connection: function(connection, **arguments(function, text)))
    assert outcome in OUTCOMES, (function, text)
    return outcome


@pytest.mark.parametrize("kind", ALIKE)
@pytest.mark.timeout(240)
def test_no_function_takes_an_attack_for_a_statement(kind: str, tmp_path: Path) -> None:
    texts = [*ATTACKS, *(f"x{odd}" for odd in ODD)]
    with made(kind, tmp_path) as database:
        canaries(database)
        for function in FUNCTIONS:
            create(database, texts)
            with guarded(database):
                outcomes = [tried(database, function, text) for text in texts]
            assert set(outcomes) != {"RefusedError"}, function


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(240)
def test_no_text_becomes_a_statement(kind: str, tmp_path: Path) -> None:
    outcomes: Counter[str] = Counter()

    @given(st.sampled_from(FUNCTIONS), HOSTILE)
    @example(enrolment.void, "")
    @settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
    def attack(function: Callable[..., Any], text: str) -> None:
        create(database, [text])
        with guarded(database):
            outcomes[tried(database, function, text)] += 1

    with made(kind, tmp_path) as database:
        canaries(database)
        attack()
    assert outcomes["done"] * 10 > outcomes.total()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(120)
def test_a_name_is_kept_as_it_is_and_finds_itself_only(kind: str, tmp_path: Path) -> None:
    @given(HOSTILE, HOSTILE)
    @example("a%", "ab")
    @example("A", "a")
    @example("é", "e\u0301")
    @example("x ", "x")
    @settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
    def keep(one: str, other: str) -> None:
        with database.read() as connection:
            known = {
                device.id
                for device in devices.page(connection, devices.DeviceSelection(), DatabaseSettings(), limit_rows=1000)
            }
        try:
            with database.write() as connection:
                devices.enrol(connection, one, NOW)
                devices.label(connection, one, [one], one)
        except DatabaseError:
            return
        with database.read() as connection:
            device = devices.get(connection, one)
            assert (device.id, device.tags, device.site) == (one, {one}, one)
            assert [found.id for found in found_by(connection, one)] == [one]
            if other != one and other not in known:
                with pytest.raises(DatabaseError):
                    devices.get(connection, other)

    with made(kind, tmp_path) as database:
        keep()


def found_by(connection: Connection, text: str) -> tuple[devices.Device, ...]:
    wanted = devices.DeviceSelection(tags=frozenset({text}), scope=frozenset({text}), site=text)
    return devices.page(connection, wanted, DatabaseSettings())


@pytest.mark.parametrize("kind", KINDS)
def test_values_that_no_database_keeps_are_refused_alike(kind: str, tmp_path: Path) -> None:
    attempts: list[Callable[[Connection], object]] = [
        lambda c: devices.enrol(c, "a\0b", NOW),
        lambda c: devices.enrol(c, "\udfff", NOW),
        lambda c: devices.enrol(c, "é" * (NAME_BYTES // 2 + 1), NOW),
        lambda c: devices.enrol(c, "a", datetime(2026, 3, 1)),  # noqa: DTZ001
        lambda c: devices.get(c, "a\0b"),
        lambda c: devices.page(c, devices.DeviceSelection(tags=frozenset({"\0"})), DatabaseSettings()),
        lambda c: audit.append(c, Deed("a", "b", "c", {"x": float("inf")}), NOW),
        lambda c: audit.append(c, Deed("a", "b", "c", {"x": "y" * 70_000}), NOW),
        lambda c: audit.append(c, Deed("a" * (NAME_BYTES + 1), "b", "c"), NOW),
    ]
    with made(kind, tmp_path) as database:
        for attempt in attempts:
            with pytest.raises(DatabaseError) as refused, database.write() as connection:
                attempt(connection)
            assert type(refused.value).__name__ == "RefusedError"
        assert content(database)["devices"] == []
        enrolled(database, "é" * (NAME_BYTES // 2))
        with database.write() as connection:
            devices.touch(connection, {"é" * (NAME_BYTES // 2): NOW + timedelta(days=200_000)})
            assert devices.get(connection, "é" * (NAME_BYTES // 2)).seen == NOW + timedelta(days=200_000)
