"""Telemetry that devices send to the controller, on both databases.

It is stored once however often it is sent, acknowledged when it is on the disk, and bounded for every sender.
"""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from fleet.controller.config import FleetConfig
from fleet.controller.control.ingestion import Intake
from fleet.controller.control.settings import IntakeSettings
from fleet.controller.database import devices, telemetry
from gateway.common.domain.errors import Fault, RequestError
from tests.simulators.asking import gap, packed, plane, record, tell
from tests.simulators.constants import settings_with
from tests.simulators.controller import RunningController
from tests.simulators.databases import KINDS

GZIP = {"content-encoding": "gzip"}


@pytest.fixture(scope="module", params=KINDS)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    config = replace(FleetConfig(), ingestion=IntakeSettings(rows_per_s=0))
    with plane(request.param, tmp_path_factory.mktemp("fleet"), config) as started:
        yield started


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"d-{abs(hash(request.node.name)) % 10**9}"


@pytest.fixture
def client(running: RunningController, name: str) -> Iterator[httpx.Client]:
    with running.device_client(running.enrolled(name)) as made:
        yield made


def sources(running: RunningController, device: str) -> dict[tuple[str, int], tuple[int, int, int]]:
    """Return acknowledged, stored and lost rows, by stream and boot."""
    with running.control.database.read() as connection:
        found = telemetry.sources(connection, device)
    return {(one.stream, one.boot_epoch): (one.contiguous, one.rows, one.lost) for one in found}


def acknowledged(answer: httpx.Response) -> dict[tuple[str, int], int]:
    assert answer.status_code == 200, answer.text
    return {(one["stream"], one["boot_epoch"]): one["seq"] for one in answer.json()["acknowledged"]}


# ---- telemetry -------------------------------------------------------------------------------------------------------
def test_what_came_without_a_gap_is_acknowledged(running, name, client) -> None:
    lines = [record("vitals", seq, {"n": seq}) for seq in (1, 2, 4)]
    assert acknowledged(tell(client, *lines, record("state", 1, {}, epoch=7))) == {("vitals", 1): 2, ("state", 7): 1}
    assert acknowledged(tell(client, gap("vitals", 3, 3))) == {("vitals", 1): 4}
    assert sources(running, name) == {("vitals", 1): (4, 3, 1), ("state", 7): (1, 1, 0)}
    with running.control.database.read() as connection:
        settings = running.control.database.settings
        rows = telemetry.page(connection, name, settings, stream="vitals", boot_epoch=1)
    assert [(row.row.seq, row.row.document) for row in rows] == [(1, {"n": 1}), (2, {"n": 2}), (4, {"n": 4})]


def test_nothing_and_empty_lines_are_nothing(client) -> None:
    assert acknowledged(tell(client)) == {}
    assert acknowledged(tell(client, body=gzip.compress(b"\n \n\n"))) == {}


def test_a_body_that_is_not_packed_is_read_too(client) -> None:
    content = json.dumps(record("vitals", 1, {})).encode()
    assert acknowledged(client.post("/v1/self/telemetry", content=content)) == {("vitals", 1): 1}
    refused = client.post("/v1/self/telemetry", content=content, headers={"content-encoding": "br"})
    assert refused.status_code == 415


def test_a_bad_line_is_named_and_nothing_of_the_request_is_kept(running, name, client) -> None:
    for bad in (record("vitals", 2, []), record("vi\0tals", 2, {}), {"stream": "vitals"}, record("vitals", 0, {})):
        refused = tell(client, record("vitals", 1, {}), bad)
        assert (refused.status_code, "line 2" in refused.json()["detail"]) == (400, True)
    assert sources(running, name) == {}


def test_too_much_at_once_is_refused(running, name, client) -> None:
    assert tell(client, *(record("vitals", seq, {}) for seq in range(1, 1002))).status_code == 413
    assert tell(client, *(record("vitals", 1, {}, epoch=epoch) for epoch in range(65))).status_code == 413
    assert tell(client, body=gzip.compress(b"\n" * 3000)).status_code == 413
    assert tell(client, body=bytes(1_048_577)).status_code == 413
    packing = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packing.compress(bytes(1_048_576)) for _ in range(300)) + packing.flush()
    assert tell(client, body=bomb).status_code == 413
    assert sources(running, name) == {}
    assert len(acknowledged(tell(client, *(record("vitals", seq, {}) for seq in range(1, 1001))))) == 1


@pytest.mark.parametrize("body", [b"", b"no gzip", gzip.compress(b"{}")[:-3], gzip.compress(b"\xff\xfe\n")])
def test_what_is_no_telemetry_is_refused(client, body) -> None:
    assert tell(client, body=body).status_code in {200, 400}
    assert body == b"" or tell(client, body=body).status_code == 400


def test_a_device_speaks_for_itself_only(running, name, client) -> None:
    other = f"{name}-other"
    running.enrolled(other)
    line = record("vitals", 1, {}) | {"device": other}
    assert acknowledged(tell(client, line)) == {("vitals", 1): 1}
    assert sources(running, other) == {}
    with running.client() as operator:
        assert tell(operator, line).status_code == 403


def test_who_tells_too_much_at_once_is_told_to_come_later(running, name) -> None:
    control, made = running.control, running.enrolled(name)
    intake = Intake(control.database, control.settings.ingestion, control.rollouts.states, control.counts)
    serial = made.certificate.serial
    with intake._limit.entered(name), pytest.raises(Exception, match="again later"):
        intake.take(serial, packed(record("vitals", 1, {})), "gzip", running.clock)
    assert intake.take(serial, packed(record("vitals", 1, {})), "gzip", running.clock)


def test_one_device_takes_one_place_however_many_certificates_it_has(running, name) -> None:
    """It is given two dozen a day, each of which holds for months."""
    first, second = running.enrolled(name), running.enrolled(name)
    control, body = running.control, packed(record("vitals", 1, {}))
    intake = Intake(
        control.database, settings_with(IntakeSettings(), wait_s=0.1), control.rollouts.states, control.counts
    )
    entered, done = threading.Event(), threading.Event()

    def held() -> datetime:
        entered.set()
        assert done.wait(20)
        return running.clock()

    clocks = iter([running.clock, held])

    def clock() -> datetime:
        return next(clocks, running.clock)()

    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(intake.take, first.certificate.serial, body, "gzip", clock)
        try:
            assert entered.wait(20)
            with pytest.raises(RequestError, match="of this one, is being stored"):
                intake.take(second.certificate.serial, body, "gzip", running.clock)
        finally:
            done.set()
        assert slow.result()


def test_what_is_stored_was_received_once_nobody_else_writes_before(running, name) -> None:
    """The time of the request would be wrong: it may have waited, and a reader in order has passed that moment."""
    control, began = running.control, running.clock()
    times = iter([began, *(began + timedelta(minutes=minute) for minute in (5, 6, 7))])
    intake = Intake(control.database, IntakeSettings(), control.rollouts.states, control.counts)
    serial = running.enrolled(name).certificate.serial
    intake.take(serial, packed(record("vitals", 1, {})), "gzip", lambda: next(times))
    with control.database.read() as connection:
        (row,) = telemetry.newest(connection, name, control.database.settings, stream="vitals")
    assert row.received > began


def test_who_tells_more_than_anybody_should_is_told_when_to_go_on(running, name) -> None:
    control, other = running.control, running.enrolled(f"{name}-other")
    settings = settings_with(IntakeSettings(), rows_per_s=0.01, rows_burst=25)
    intake = Intake(control.database, settings, control.rollouts.states, Counter())
    serial = running.enrolled(name).certificate.serial
    for start in (1, 11, 21):  # a request is taken whole, or not at all
        lines = [record("vitals", seq, {}) for seq in range(start, start + 10)]
        assert intake.take(serial, packed(*lines), "gzip", running.clock)
    with pytest.raises(RequestError, match=r"more than 0\.01 rows a second") as refused:
        intake.take(serial, packed(record("vitals", 31, {})), "gzip", running.clock)
    assert refused.value.fault is Fault.OVERLOADED
    assert 300 < (refused.value.retry_after_s or 0) < 700
    assert intake.take(other.certificate.serial, packed(record("vitals", 1, {})), "gzip", running.clock)
    assert sources(running, name) == {("vitals", 1): (30, 30, 0)}


def replayed(running: RunningController, name: str, client: httpx.Client, rows: int) -> None:
    """Send everything three times, out of order in between, a part of it dropped by the device."""
    batch, lost = 500, range(201, 301)
    starts = range(1, rows + 1, batch)

    def lines(start: int) -> list[Mapping[str, Any]]:
        numbers = [seq for seq in range(start, start + batch) if seq not in lost]
        dropped = [gap("vitals", lost[0], lost[-1])] if start == 1 else []
        return [*dropped, *(record("vitals", seq, {"temperature_c": seq}) for seq in numbers)]

    before = running.control.counts["telemetry_rows"]
    for start in (*starts, *starts[::-1], *starts):
        assert tell(client, *lines(start)).status_code == 200
    assert sources(running, name) == {("vitals", 1): (rows, rows - len(lost), len(lost))}
    assert running.control.counts["telemetry_rows"] - before == rows - len(lost)
    kept, after = 0, 0
    with running.control.database.read() as connection:
        while page := telemetry.page(
            connection,
            name,
            running.control.database.settings,
            stream="vitals",
            boot_epoch=1,
            after=after,
            limit_rows=1000,
        ):
            assert all(row.row.document == {"temperature_c": row.row.seq} for row in page)
            kept, after = kept + len(page), page[-1].row.seq
    assert kept == rows - len(lost)


def test_rows_that_are_replayed_are_kept_once(running, name, client) -> None:
    replayed(running, name, client, 3_000)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_rows_that_are_replayed_are_kept_once(running, name, client) -> None:
    replayed(running, name, client, 100_000)


def test_floods_of_some_take_nothing_from_the_others(running, name) -> None:
    """Two devices send all they can from many connections; the third's telemetry comes through, all of it."""
    made = [running.enrolled(f"{name}-{number}") for number in range(3)]
    body, over = packed(*(record("vitals", seq, {"x": "y" * 200}) for seq in range(1, 1001))), threading.Event()

    def flood(client: httpx.Client) -> set[int]:
        codes: set[int] = set()
        while not over.is_set():
            codes.add(tell(client, body=body).status_code)
        return codes

    with ExitStack() as clients, ThreadPoolExecutor(6) as threads:
        floods = [clients.enter_context(running.device_client(made[number % 2])) for number in range(6)]
        honest = clients.enter_context(running.device_client(made[2]))
        flooding = [threads.submit(flood, client) for client in floods]
        for seq in range(1, 21):
            assert acknowledged(tell(honest, record("state", seq, {}))) == {("state", 1): seq}
            assert honest.get("/v1/self/assignment").status_code == 200
        over.set()
        assert set().union(*(one.result() for one in flooding)) <= {200, 503}
    assert running.control.counts["telemetry_overloaded"] > 0
    assert sources(running, f"{name}-0") == {("vitals", 1): (1000, 1000, 0)}
    assert sources(running, f"{name}-2") == {("state", 1): (20, 20, 0)}


# ---- inventory -------------------------------------------------------------------------------------------------------
INVENTORY = {
    "arch": "aarch64",
    "board": {"model": "Raspberry Pi 5", "compatible": ["raspberrypi,5-model-b"]},
    "accelerators": [{"kind": "hailo-8", "name": "x"}, {"kind": "coral-usb"}, {"kind": "hailo-8"}, {"kind": "a\0b"}, 7],
    "profile": "raspberry-pi-5",
}


def test_an_inventory_describes_the_device(running, name, client) -> None:
    body = gzip.compress(json.dumps(INVENTORY).encode())
    assert client.put("/v1/self/inventory", content=body, headers=GZIP).status_code == 204
    with running.control.database.read() as connection:
        found, told = devices.get(connection, name), devices.inventory(connection, name)
    assert (found.profile, found.accelerators) == ("raspberry-pi-5", ("hailo-8", "coral-usb"))
    assert told == INVENTORY


@pytest.mark.parametrize("odd", [{}, {"accelerators": {}, "profile": ["x"]}, {"accelerators": [{"kind": 7}, None]}])
def test_an_odd_inventory_is_kept_all_the_same(running, name, client, odd) -> None:
    assert client.put("/v1/self/inventory", json=odd).status_code == 204
    with running.control.database.read() as connection:
        assert devices.inventory(connection, name) == odd
        assert devices.get(connection, name).accelerators == ()


def test_what_is_no_inventory_is_refused(client) -> None:
    for body, status in ((b"[]", 400), (b"{", 400), (b'{"x":"\\ud800"}', 400), (bytes(262_145), 413)):
        assert client.put("/v1/self/inventory", content=body).status_code == status
    bomb = gzip.compress(b'{"x":"' + bytes(10_000_000) + b'"}')
    assert client.put("/v1/self/inventory", content=bomb, headers=GZIP).status_code == 413


def test_inventories_wait_for_each_other_too(running, name) -> None:
    made, inventories = running.enrolled(name), running.control.inventories
    serial = made.certificate.serial
    with inventories._limit.entered(name), pytest.raises(Exception, match="again later"):
        inventories.keep(serial, b"{}", "", running.clock())
    inventories.keep(serial, b"{}", "", running.clock())


def test_an_answer_that_nobody_asked_for_is_refused(client) -> None:
    for body in ({"id": 1, "answer": {}}, {"id": 2**62, "answer": {}}):
        assert client.post("/v1/self/diagnostics", json=body).status_code == 404
    for odd in ({}, {"id": "1", "answer": {}}, {"id": True, "answer": {}}, {"id": 1, "answer": []}):
        assert client.post("/v1/self/diagnostics", json=odd).status_code == 400
    body = gzip.compress(b"{" + bytes(2_000_000))
    assert client.post("/v1/self/diagnostics", content=body, headers=GZIP).status_code == 413
