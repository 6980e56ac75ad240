"""Telemetry of devices, as operators read it: streams, rows, events; and diagnostics that devices are asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.controller.access import Role
from fleet.controller.database import diagnostics, events, telemetry
from fleet.controller.database.events import Event
from fleet.controller.database.ingestion import Batch, Row
from tests.simulators.controller import RunningController, controlling

VITALS = "/v1/devices/camera/telemetry/vitals"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        for name, tag in (("camera", "pilot"), ("other", "lobby")):
            running.enrolled(name, tags=[tag])
        told(running)
        settings, now = running.control.database.settings, running.clock()
        with running.control.database.write() as connection:
            happened = [Event("camera", "k1", now, "rollback", "reader"), Event("other", "k1", now, "poll")]
            events.record(connection, happened, now, settings)
        yield running


def told(running: RunningController) -> None:
    """Store rows of two boots; one row never came."""
    now = running.clock()
    with running.control.database.write() as connection:
        for boot, numbers in ((1, (1, 2, 4)), (2, (1, 2))):
            rows = [Row(number, now, "vitals", {"boot": boot, "number": number}) for number in numbers]
            settings = running.control.database.settings.telemetry
            telemetry.receive(connection, "camera", Batch("vitals", boot, rows), now, settings)


def numbers(page) -> list[tuple[int, int]]:
    return [(row["boot_epoch"], row["seq"]) for row in page["items"]]


def test_streams_say_how_far_they_came_and_what_is_missing(controller) -> None:
    with controller.client(Role.VIEWER) as viewer:
        streams = viewer.get("/v1/devices/camera/telemetry").json()["items"]
        assert viewer.get("/v1/devices/none/telemetry").status_code == 404
    told = [(one["stream"], one["boot_epoch"], one["contiguous"], one["gaps"], one["rows"]) for one in streams]
    assert told == [("vitals", 2, 2, [], 2), ("vitals", 1, 2, [[3, 3]], 3)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)]),
        ("?after=1.2", [(1, 4), (2, 1), (2, 2)]),
        ("?after=1.4&limit=1", [(2, 1)]),
        ("?after=2.2", []),
        ("/newest", [(2, 2)]),
        ("/newest?limit=3", [(2, 2), (2, 1), (1, 4)]),
    ],
)
def test_rows_in_order_over_boots(controller, query, expected) -> None:
    with controller.client(Role.VIEWER) as viewer:
        page = viewer.get(f"{VITALS}{query}").json()
    assert numbers(page) == expected


def test_the_last_row_of_each_device(controller) -> None:
    """Rows come by device, in pages; a boot whose rows are swept does not count, nor a device outside the scope."""
    now, settings = controller.clock(), controller.control.database.settings.telemetry
    with controller.control.database.write() as connection:
        telemetry.receive(connection, "other", Batch("load", 1, [Row(7, now, "load", {"cpu": 1})]), now, settings)
        telemetry.receive(connection, "camera", Batch("load", 3, [Row(1, now, "load", {"cpu": 2})]), now, settings)
        telemetry.receive(connection, "camera", Batch("load", 4, [], lost=[(1, 5)]), now, settings)
    path = "/v1/telemetry/load/newest"
    with controller.client(Role.VIEWER) as viewer, controller.client(Role.VIEWER, tags=["lobby"]) as scoped:
        page = viewer.get(path).json()
        assert [(one["device"], one["boot_epoch"], one["seq"]) for one in page["items"]] == [
            ("camera", 3, 1),
            ("other", 1, 7),
        ]
        first = viewer.get(path, params={"limit": 1}).json()
        assert (first["next"], [one["device"] for one in first["items"]]) == ("camera", ["camera"])
        rest = viewer.get(path, params={"limit": 1, "after": "camera"}).json()
        assert [one["device"] for one in rest["items"]] == ["other"]
        queried = viewer.get(path, params={"query": "tag = pilot"}).json()["items"]
        assert [one["device"] for one in queried] == ["camera"]
        assert [one["device"] for one in scoped.get(path).json()["items"]] == ["other"]
        assert viewer.get("/v1/telemetry/none/newest").json() == {"items": [], "next": None}
        assert viewer.get(path, params={"query": "tag ="}).status_code == 400


def test_pages_of_rows_follow_each_other(controller) -> None:
    found, after = [], ""
    with controller.client(Role.VIEWER) as viewer:
        while after is not None:
            page = viewer.get(VITALS, params={"limit": 2, "after": after}).json()
            found, after = found + numbers(page), page["next"]
    assert found == [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2)]


@pytest.mark.parametrize("after", ["x", "1", "1.", ".1", "-1.2", f"{2**64}.1", "1.2.3", "²"])
def test_a_cursor_that_is_none_is_refused(controller, after) -> None:
    with controller.client(Role.VIEWER) as viewer:
        assert viewer.get(VITALS, params={"after": after}).status_code == 400


def test_events_within_the_scope(controller) -> None:
    with controller.client(Role.VIEWER) as viewer:
        assert [one["device"] for one in viewer.get("/v1/events").json()["items"]] == ["other", "camera"]
        assert [one["slot"] for one in viewer.get("/v1/events?kind=rollback").json()["items"]] == ["reader"]
        newest = viewer.get("/v1/events?limit=1").json()
        assert [one["device"] for one in viewer.get(f"/v1/events?before={newest['next']}").json()["items"]] == [
            "camera"
        ]
    with controller.client(Role.VIEWER, tags=["pilot"]) as scoped:
        assert [one["device"] for one in scoped.get("/v1/events").json()["items"]] == ["camera"]
        assert scoped.get("/v1/events?device=other").json()["items"] == []


def test_a_device_is_asked_and_its_answer_is_kept(controller) -> None:
    path, control = "/v1/devices/camera/diagnostics", controller.control
    with controller.client(Role.OPERATOR, tags=["pilot"]) as operator:
        asked = operator.post(path, json={"wanted": ["log", "doctor", "log"]}).json()
        assert (asked["wanted"], asked["answered"]) == (["doctor", "log"], None)
        assert operator.get(f"{path}/{asked['id']}").json()["answer"] is None
        with control.database.write() as connection:
            diagnostics.answer(connection, asked["id"], "camera", {"log": ["a line"]}, controller.clock())
        answered = operator.get(f"{path}/{asked['id']}").json()
        assert (answered["answer"], answered["answered"] is None) == ({"log": ["a line"]}, False)
        assert "answer" not in operator.get(path).json()["items"][0]
        assert operator.get(f"{path}/9").status_code == 404
        assert operator.post(path).json()["wanted"] == ["doctor", "log", "status", "vitals"]
    with controller.client(Role.VIEWER) as viewer:
        assert viewer.post(path, json={}).status_code == 403
        assert viewer.get(path).status_code == 403


@pytest.mark.parametrize("body", [{"wanted": []}, {"wanted": ["shadow"]}, {"wanted": "log"}, {"all": True}])
def test_what_cannot_be_asked_for_is_refused(controller, body) -> None:
    with controller.client(Role.OPERATOR) as operator:
        assert operator.post("/v1/devices/camera/diagnostics", json=body).status_code == 400


def test_requests_to_a_device_that_is_away_are_bounded(controller) -> None:
    limit = controller.control.database.settings.diagnostics_open_limit
    with controller.client(Role.OPERATOR) as operator:
        statuses = [operator.post("/v1/devices/other/diagnostics").status_code for _ in range(limit + 1)]
    assert statuses == [201] * limit + [409]
