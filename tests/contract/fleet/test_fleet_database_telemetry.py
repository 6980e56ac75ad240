"""Telemetry, events and diagnostics, on SQLite and PostgreSQL alike."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.controller.database import diagnostics, events, sweep, telemetry
from fleet.controller.database.engine import Database
from fleet.controller.database.errors import AbsentError, ConflictError, RefusedError
from fleet.controller.database.events import Event
from fleet.controller.database.ingestion import DUPLICATE, Batch, Row
from fleet.controller.database.settings import DatabaseSettings, TelemetryStorageSettings
from fleet.controller.database.spans import Received, Span
from fleet.controller.database.telemetry import StoredBatch
from tests.simulators.constants import settings_with
from tests.simulators.databases import KINDS, NOW, content, database, enrolled, made
from tests.simulators.examples import examples

__all__ = ["database"]
SETTINGS = DatabaseSettings()
HOUR = timedelta(hours=1)


def row(seq: int, size: int = 0) -> Row:
    return Row(seq, NOW + seq * timedelta(seconds=1), "vitals", {"n": "x" * size})


def send(
    database: Database,
    numbers: Sequence[int],
    *,
    boot: int = 1,
    stream: str = "metrics",
    device: str = "camera-1",
    lost: Sequence[Span] = (),
    now: datetime = NOW,
    limits: TelemetryStorageSettings = SETTINGS.telemetry,
    size: int = 0,
) -> StoredBatch:
    """Store one request of a device."""
    with database.write() as connection:
        batch = Batch(stream, boot, [row(number, size) for number in numbers], lost)
        return telemetry.receive(connection, device, batch, now, limits)


def kept(database: Database, boot: int = 1, stream: str = "metrics", device: str = "camera-1") -> list[int]:
    with database.read() as connection:
        page = telemetry.page(connection, device, SETTINGS, stream=stream, boot_epoch=boot, limit_rows=1000)
    assert [entry.row for entry in page] == [row(entry.row.seq, len(entry.row.document["n"])) for entry in page]
    return [entry.row.seq for entry in page]


def test_rows_are_stored_once_and_acknowledged_without_gaps(database: Database) -> None:
    enrolled(database, "camera-1")
    assert send(database, [1, 2, 4]) == StoredBatch(2, 3, {})
    assert send(database, [1, 2, 4, 6]) == StoredBatch(2, 1, {DUPLICATE: 3})
    with database.read() as connection:
        (source,) = telemetry.sources(connection, "camera-1")
    assert (source.contiguous, source.gaps, source.rows, source.lost) == (2, ((3, 3), (5, 5)), 4, 0)
    assert send(database, [3], lost=[(5, 5)]) == StoredBatch(6, 1, {})
    assert kept(database) == [1, 2, 3, 4, 6]
    with database.read() as connection:
        (source,) = telemetry.sources(connection, "camera-1")
        assert (source.gaps, source.lost, source.size_bytes) == ((), 1, sweep.kept_bytes(connection))
        assert source.size_bytes == 5 * len('{"n":""}')


def test_boots_and_streams_are_counted_apart_and_the_newest_comes_first(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2")
    send(database, [1, 2, 3])
    send(database, [1], boot=2)
    send(database, [1, 2], stream="events")
    send(database, [1], device="camera-2")
    with database.read() as connection:
        newest = telemetry.newest(connection, "camera-1", SETTINGS, stream="metrics", limit_rows=2)
        assert [(entry.boot_epoch, entry.row.seq) for entry in newest] == [(2, 1), (1, 3)]
        shown = [
            (source.stream, source.boot_epoch, source.rows) for source in telemetry.sources(connection, "camera-1")
        ]
    assert shown == [("events", 1, 2), ("metrics", 2, 1), ("metrics", 1, 3)]


def test_only_devices_have_telemetry(database: Database) -> None:
    with pytest.raises(ConflictError):
        send(database, [1])


def test_rows_and_streams_are_bounded(database: Database) -> None:
    enrolled(database, "camera-1")
    limits = settings_with(TelemetryStorageSettings(), row_limit_bytes=50, streams_limit=2)
    with pytest.raises(RefusedError, match="at most 50"):
        send(database, [1], size=100, limits=limits)
    for stream in ("a", "b", "a"):
        send(database, [1], stream=stream, limits=limits)
    with pytest.raises(RefusedError, match="2 streams already"):
        send(database, [1], stream="c", limits=limits)


def test_the_boot_that_was_silent_longest_goes(database: Database) -> None:
    """Not the oldest one: it may be that of a device whose copy boots often."""
    enrolled(database, "camera-1")
    limits = settings_with(TelemetryStorageSettings(), boots_limit=2)
    for second, boot in enumerate(range(3, 10)):
        send(database, [1], boot=boot, limits=limits, now=NOW + timedelta(seconds=2 * second))
        own = [second + 1]
        assert send(database, own, boot=1, limits=limits, now=NOW + timedelta(seconds=2 * second + 1)).stored == 1
    assert kept(database, boot=1) == [1, 2, 3, 4, 5, 6, 7]
    assert [kept(database, boot=boot) for boot in (7, 8, 9)] == [[], [], [1]]
    assert send(database, [1], boot=2, limits=limits, now=NOW + timedelta(days=1)) == StoredBatch(1, 1, {})
    assert (kept(database, boot=9), len(kept(database, boot=1))) == ([], 7)


def test_the_last_row_of_each_device_is_of_its_newest_boot_with_rows(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2", "camera-3")
    send(database, [1, 3, 2], boot=1)
    send(database, [1, 2], boot=2)
    send(database, [], boot=3, lost=[(1, 4)])
    send(database, [9], device="camera-2")
    send(database, [5], device="camera-3", stream="other")
    with database.read() as connection:
        found = telemetry.newest_of_devices(connection, SETTINGS, stream="metrics")
        assert [(device, one.boot_epoch, one.row) for device, one in found] == [
            ("camera-1", 2, row(2)),
            ("camera-2", 1, row(9)),
        ]
        assert (
            telemetry.newest_of_devices(connection, SETTINGS, stream="metrics", after="camera-1", limit_rows=1)
            == found[1:]
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.timeout(240)
def test_many_rows_replayed_are_there_once(kind: str, count: int, tmp_path: Path) -> None:
    rng = random.Random(7)
    batches = [range(first, first + 500) for first in range(1, count + 1, 500)]
    limits = settings_with(TelemetryStorageSettings(), spans_limit=300)
    with made(kind, tmp_path) as database:
        enrolled(database, "camera-1")
        stored = duplicates = 0
        for _ in range(2):
            for numbers in rng.sample(batches, len(batches)):
                answer = send(database, numbers, limits=limits)
                stored, duplicates = stored + answer.stored, duplicates + answer.left.get(DUPLICATE, 0)
        assert (stored, duplicates, answer.contiguous) == (count, count, count)
        with database.read() as connection:
            (source,) = telemetry.sources(connection, "camera-1")
            found = connection.exec_driver_sql("SELECT count(*), min(seq), max(seq), sum(bytes) FROM telemetry").one()
        assert tuple(found) == (count, 1, count, source.size_bytes)
        assert (source.rows, source.gaps, source.lost) == (count, (), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.timeout(120)
def test_telemetry_keeps_what_a_plain_set_keeps(kind: str, tmp_path: Path) -> None:
    numbers = st.lists(st.integers(1, 25), max_size=6)
    gaps = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)).map(lambda two: (two[0], sum(two))), max_size=2)
    steps = st.lists(st.tuples(st.integers(1, 2), numbers, gaps), max_size=6)
    devices = iter(range(1_000_000))

    @given(steps)
    @settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def compare(sent) -> None:
        device = f"camera-{next(devices)}"
        enrolled(database, device)
        known: dict[int, set[int]] = {1: set(), 2: set()}
        stored: dict[int, set[int]] = {1: set(), 2: set()}
        for boot, rows, lost in sent:
            answer = send(database, rows, boot=boot, lost=lost, device=device)
            known[boot].update(*(range(first, last + 1) for first, last in lost))
            stored[boot].update(number for number in rows if number not in known[boot])
            known[boot].update(rows)
            assert answer.contiguous == next(n for n in range(99) if n + 1 not in known[boot])
        assert {boot: set(kept(database, boot, device=device)) for boot in (1, 2)} == stored

    with made(kind, tmp_path) as database:
        compare()


# ---- retention ------------------------------------------------------------------------------------------------------
def swept(database: Database, now: datetime, limits: TelemetryStorageSettings) -> list[int]:
    """Return how many rows each sweep removed."""
    removed = []
    while not removed or removed[-1]:
        with database.write() as connection:
            removed.append(sweep.sweep(connection, now, limits))
    return removed[:-1]


def counted(database: Database) -> None:
    """Check that sources state the true number and size of their rows."""
    with database.read() as connection:
        rows = connection.exec_driver_sql(
            "SELECT s.rows, s.bytes, count(t.seq), coalesce(sum(t.bytes), 0) FROM telemetry_sources s "
            "LEFT JOIN telemetry t ON t.source = s.id GROUP BY s.id, s.rows, s.bytes"
        ).all()
    assert rows
    assert all((row[0], row[1]) == (row[2], row[3]) for row in rows)


def test_old_rows_go_a_little_at_a_time_and_are_not_asked_for_again(database: Database) -> None:
    enrolled(database, "camera-1")
    limits = settings_with(TelemetryStorageSettings(), age_limit_d=1.0, sweep_rows=2)
    send(database, [1, 2, 3, 5, 6], now=NOW)
    send(database, [8], now=NOW + HOUR)
    assert swept(database, NOW + timedelta(days=1), limits) == []
    assert swept(database, NOW + timedelta(days=1, seconds=7), limits) == [2, 2, 1]
    assert kept(database) == [8]
    counted(database)
    assert send(database, [1, 2, 3, 5]) == StoredBatch(3, 0, {DUPLICATE: 4})


def test_a_row_that_came_while_the_clock_was_a_year_back_stays(database: Database) -> None:
    enrolled(database, "camera-1")
    limits = settings_with(TelemetryStorageSettings(), age_limit_d=1.0)
    send(database, [1], now=NOW - timedelta(days=366))
    assert swept(database, NOW + HOUR, limits) == []
    assert swept(database, NOW + timedelta(days=2), limits) == [1]


def test_a_device_whose_clock_is_far_ahead_keeps_its_rows_no_longer(database: Database) -> None:
    enrolled(database, "camera-1")
    limits = settings_with(TelemetryStorageSettings(), age_limit_d=1.0)
    send(database, [1], now=NOW - timedelta(days=30))
    assert swept(database, NOW - timedelta(days=28), limits) == [1]


def test_a_device_and_all_devices_have_their_bytes(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2", "camera-3")
    for hours, device in enumerate(["camera-1", "camera-2", "camera-3"]):
        send(database, range(1, 11 if device == "camera-1" else 5), device=device, size=92, now=NOW + hours * HOUR)
    of_device = TelemetryStorageSettings(device_limit_bytes=400, total_limit_bytes=10_000)
    assert swept(database, NOW, of_device) == [6]
    assert kept(database) == [7, 8, 9, 10]
    assert swept(database, NOW, TelemetryStorageSettings(total_limit_bytes=701)) == [5]
    counted(database)
    with database.read() as connection:
        assert sweep.kept_bytes(connection) == 700
    assert kept(database) == []
    assert kept(database, device="camera-2") == [2, 3, 4]
    assert kept(database, device="camera-3") == [1, 2, 3, 4]


# ---- events ---------------------------------------------------------------------------------------------------------
def test_an_event_is_recorded_once(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2")
    rollback = Event("camera-1", "1/7", NOW, "rollback", "meter", "models/a/b/1/release", "r-1", {"failed_runs": 3})
    with database.write() as connection:
        assert events.record(connection, [], NOW, SETTINGS) == 0
        assert events.record(connection, [rollback, Event("camera-2", "1/7", NOW, "boot")], NOW, SETTINGS) == 2
        assert events.record(connection, [rollback, Event("camera-1", "1/8", NOW, "boot")], NOW, SETTINGS) == 1
        shown = events.page(connection, SETTINGS)
        assert [(entry.event.device, entry.event.kind) for entry in shown] == [
            ("camera-1", "boot"), ("camera-2", "boot"), ("camera-1", "rollback"),
        ]  # fmt: skip
        assert events.page(connection, SETTINGS, before=shown[1].id) == shown[2:]
        assert shown[2].event == rollback
        for narrowed in ({"rollout": "r-1"}, {"kind": "rollback"}, {"device": "camera-1", "before": shown[0].id}):
            assert events.page(connection, SETTINGS, **narrowed) == shown[2:]
    with pytest.raises(ConflictError), database.write() as connection:
        events.record(connection, [Event("nobody", "1", NOW, "boot")], NOW, SETTINGS)


def test_events_go_by_age_and_number(database: Database) -> None:
    enrolled(database, "camera-1")
    with database.write() as connection:
        events.record(connection, [Event("camera-1", "old", NOW, "boot")], NOW - timedelta(days=31), SETTINGS)
        events.record(connection, [Event("camera-1", f"{n}", NOW, "boot") for n in range(5)], NOW, SETTINGS)
        assert events.sweep(connection, NOW, DatabaseSettings(events_limit_rows=3)) == 3
        assert [entry.event.key for entry in events.page(connection, SETTINGS)] == ["4", "3", "2"]
        assert events.sweep(connection, NOW, DatabaseSettings(events_limit_rows=3)) == 0


def test_events_go_a_few_at_a_time_the_oldest_first(database: Database) -> None:
    enrolled(database, "camera-1")
    limits = DatabaseSettings(events_limit_rows=3, telemetry=settings_with(TelemetryStorageSettings(), sweep_rows=4))
    with database.write() as connection:
        for day, keys in ((31, "abcdef"), (1, "ghijklmno")):
            happened = [Event("camera-1", key, NOW, "boot") for key in keys]
            events.record(connection, happened, NOW - timedelta(days=day), SETTINGS)
        assert [events.sweep(connection, NOW, limits) for _ in range(5)] == [4, 4, 4, 0, 0]
        assert [entry.event.key for entry in events.page(connection, SETTINGS)] == ["o", "n", "m"]


def test_a_device_that_tells_without_end_pushes_out_its_own_events(database: Database) -> None:
    enrolled(database, "camera-1", "flood")
    few = settings_with(DatabaseSettings(), device_events_limit_rows=3)
    with database.write() as connection:
        events.record(connection, [Event("camera-1", "1", NOW, "rollback")], NOW, few)
        for start in range(0, 8, 2):
            told = [Event("flood", f"{n}", NOW, "rollback") for n in (start, start + 1)]
            assert events.record(connection, told, NOW, few) == 2
        shown = [(one.event.device, one.event.key) for one in events.page(connection, few)]
    assert shown == [("flood", "7"), ("flood", "6"), ("flood", "5"), ("camera-1", "1")]


# ---- diagnostics ----------------------------------------------------------------------------------------------------
def ask(database: Database, device: str = "camera-1", limits: DatabaseSettings = SETTINGS) -> int:
    with database.write() as connection:
        asked = {"now": NOW, "expires": NOW + HOUR, "by": "anna"}
        return diagnostics.ask(connection, device, {"log_lines": 100}, limits, **asked)


def test_a_device_is_asked_and_answers_once(database: Database) -> None:
    enrolled(database, "camera-1", "camera-2")
    first, second = ask(database), ask(database)
    with database.write() as connection:
        assert [request.id for request in diagnostics.waiting(connection, "camera-1", NOW)] == [first, second]
        assert diagnostics.waiting(connection, "camera-2", NOW) == ()
        diagnostics.answer(connection, first, "camera-1", {"log": ["\0é"]}, NOW)
        with pytest.raises(ConflictError, match="answered already"):
            diagnostics.answer(connection, first, "camera-1", {}, NOW)
        with pytest.raises(ConflictError, match="has expired"):
            diagnostics.answer(connection, second, "camera-1", {}, NOW + HOUR)
        with pytest.raises(AbsentError, match="was not asked"):
            diagnostics.answer(connection, second, "camera-2", {}, NOW)
        assert diagnostics.waiting(connection, "camera-1", NOW + HOUR) == ()
        late, early = diagnostics.of_device(connection, "camera-1")
        assert (late.answer, early.answer, early.answered) == (None, {"log": ["\0é"]}, NOW)
        assert early.wanted == {"log_lines": 100}


def test_requests_and_answers_are_bounded(database: Database) -> None:
    enrolled(database, "camera-1")
    limits = settings_with(DatabaseSettings(), diagnostics_open_limit=2, diagnostics_limit=3)
    numbers = [ask(database, limits=limits), ask(database, limits=limits)]
    with pytest.raises(ConflictError, match="2 requests wait"):
        ask(database, limits=limits)
    for _ in range(3):
        with database.write() as connection:
            diagnostics.answer(connection, numbers[0], "camera-1", {}, NOW)
        numbers = [numbers[1], ask(database, limits=limits)]
    with database.write() as connection:
        assert len(diagnostics.of_device(connection, "camera-1")) == 3
        with pytest.raises(RefusedError, match="bytes, at most"):
            diagnostics.answer(connection, numbers[0], "camera-1", {"log": "x" * 2_000_000}, NOW)
    with pytest.raises(ConflictError):
        ask(database, "nobody")


def test_both_databases_end_with_the_same_rows(tmp_path: Path) -> None:
    ends = []
    for kind in KINDS:
        with made(kind, tmp_path) as opened, closing(opened):
            enrolled(opened, "camera-1")
            send(opened, [1, 2, 5], lost=[(3, 3)])
            send(opened, [4, 9], boot=2)
            ends.append(content(opened))
    assert ends[0] == ends[1]
    assert Received(3, ((5, 5),)).gaps() == ((4, 4),)
