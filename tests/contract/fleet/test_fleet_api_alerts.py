"""Alerts over the API: the newest first, in pages; no caller learns of devices beyond its scope."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest

from fleet.controller.access import Role
from fleet.controller.database import alerts
from fleet.controller.database.alerts import Alert, AlertState
from tests.simulators.controller import RunningController, controlling


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("fleet")) as running:
        running.enrolled("camera", tags=["pilot"])
        running.enrolled("other", tags=["lobby"])
        now = running.clock().replace(microsecond=0) + timedelta(seconds=1)
        made = []
        for number, (device, state) in enumerate(
            [("camera", AlertState.CLOSED), ("other", AlertState.OPEN), ("", AlertState.OPEN)]
        ):
            at = now + timedelta(seconds=number)
            rule = "silent" if device else "halted"
            closed = at if state is AlertState.CLOSED else None
            made.append(Alert(f"{number}", rule, device, "", state, at, at, at, closed, "why", {"n": number}))
        with running.control.database.write() as connection:
            alerts.put(connection, made, tell=False)
        yield running


def ids(fleet: RunningController, query: str = "", *, tags: tuple[str, ...] = ()) -> list[str]:
    with fleet.client(Role.VIEWER, tags=tags) as viewer:
        return [one["id"] for one in viewer.get(f"/v1/alerts{query}").json()["items"]]


def test_an_alert_as_it_is_told(fleet: RunningController) -> None:
    with fleet.client(Role.VIEWER) as viewer:
        (found,) = viewer.get("/v1/alerts?device=camera").json()["items"]
    assert found["opened"].endswith("Z")
    assert (found["closed"], found["state"], found["evidence"]) == (found["since"], "closed", {"n": 0})


def test_lists(fleet: RunningController) -> None:
    assert ids(fleet) == ["2", "1", "0"]
    assert ids(fleet, "?state=open") == ["2", "1"]
    assert ids(fleet, "?rule=silent") == ["1", "0"]
    with fleet.client(Role.VIEWER) as viewer:
        first = viewer.get("/v1/alerts?limit=2").json()
        assert viewer.get("/v1/alerts?state=odd").status_code == 400
    assert ids(fleet, f"?before={first['next']}") == ["0"]


def test_who_may_see_what(fleet: RunningController) -> None:
    assert ids(fleet, tags=("pilot",)) == ["0"]
    assert ids(fleet, "?device=other", tags=("pilot",)) == []
    with fleet.client(None) as anonymous, fleet.device_client(fleet.enrolled("camera-2")) as device:
        assert anonymous.get("/v1/alerts").status_code == 401
        assert device.get("/v1/alerts").status_code == 403


def test_what_was_told_of_a_device_that_had_the_name_before_is_for_who_sees_all(fleet: RunningController) -> None:
    at = fleet.clock() - timedelta(days=1)
    with fleet.control.database.write() as connection:
        alerts.put(
            connection, [Alert("-", "silent", "camera", "", AlertState.OPEN, at, at, at, None, "why")], tell=False
        )
    assert ids(fleet, "?device=camera") == ["0", "-"]
    assert ids(fleet, "?device=camera", tags=("pilot",)) == ["0"]
