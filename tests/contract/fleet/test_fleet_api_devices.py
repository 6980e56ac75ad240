"""`/v1/devices` and `/v1/enrolments` of a running controller: what operators see and change, and what a scope hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fleet.controller.access import Role
from fleet.controller.database import audit, devices, enrolment
from fleet.controller.database.devices import Running
from fleet.controller.database.enrolment import TokenRefusedError
from tests.simulators.asking import csr, new_key
from tests.simulators.controller import RunningController, controlling

TARGET = "models/acme/reader/1/release"


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        for name, tag, site in (("a-1", "pilot", "berlin"), ("a-2", "pilot", "bonn"), ("b-1", "lobby", "berlin")):
            running.enrolled(name, tags=[tag, "all"], site=site)
        with running.control.database.write() as connection:
            slot = Running("reader", TARGET, "ab" * 32, "cpu-int8", "cpu", "committed", running.clock())
            devices.report(connection, "a-1", [slot], "ok")
            devices.describe(connection, "a-1", profile="rpi5", accelerators=["coral-usb"], inventory={"cores": 4})
        yield running


def deeds(controller: RunningController, subject: str) -> list[tuple[str, str]]:
    """Return actor and action of each deed that was done to `subject`, the newest first."""
    with controller.control.database.read() as connection:
        found = audit.page(connection, controller.control.database.settings, subject=subject)
    return [(entry.deed.actor, entry.deed.action) for entry in found]


def pages(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """Yield all pages, of one row each."""
    after: str | None = ""
    while after is not None:
        page = client.get(path, params={"limit": 1, **({"after": after} if after else {})}).json()
        yield page
        after = page["next"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["a-1", "a-2", "b-1"]),
        ("tag=pilot", ["a-1", "a-2"]),
        ("tag=pilot&tag=lobby", []),
        ("tag=all&site=berlin", ["a-1", "b-1"]),
        ("profile=rpi5", ["a-1"]),
        (f"target={TARGET}", ["a-1"]),
        ("state=revoked", []),
        ("after=a-1&limit=1", ["a-2"]),
    ],
)
def test_a_list_shows_what_all_filters_let_through(controller, query, expected) -> None:
    with controller.client(Role.VIEWER) as viewer:
        page = viewer.get(f"/v1/devices?{query}").json()
    assert [device["id"] for device in page["items"] if device["id"][1] == "-"] == expected


def test_pages_follow_each_other_without_loss(controller) -> None:
    found, after = [], ""
    with controller.client(Role.VIEWER) as viewer:
        while after is not None:
            page = viewer.get("/v1/devices", params={"limit": 2, "after": after}).json()
            found += [device["id"] for device in page["items"]]
            after = page["next"]
    assert found == sorted(set(found))
    assert {"a-1", "a-2", "b-1"} <= set(found)


def test_one_device_with_what_it_runs_and_its_certificate(controller) -> None:
    with controller.client(Role.VIEWER) as viewer:
        device = viewer.get("/v1/devices/a-1").json()
        assert viewer.get("/v1/devices/a-1/inventory").json() == {"cores": 4}
        assert viewer.get("/v1/devices/none").status_code == 404
    assert (device["profile"], device["accelerators"], device["health"]) == ("rpi5", ["coral-usb"], "ok")
    assert [(one["slot"], one["target"], one["variant"]) for one in device["running"]] == [
        ("reader", TARGET, "cpu-int8")
    ]
    assert device["certificates"][0]["revoked"] is None
    assert device["enrolled"].endswith("Z")


@pytest.mark.parametrize("query", ["state=sleeping", "limit=0", "limit=1001", "limit=x"])
def test_a_filter_that_is_none_is_refused_by_name(controller, query) -> None:
    with controller.client(Role.VIEWER) as viewer:
        answer = viewer.get(f"/v1/devices?{query}")
    assert answer.status_code == 400
    assert query.partition("=")[0] in answer.json()["detail"]


def test_a_scope_hides_devices_even_whether_they_are_there(controller) -> None:
    with controller.client(Role.OPERATOR, tags=["pilot"]) as scoped:
        assert [device["id"] for device in scoped.get("/v1/devices").json()["items"]] == ["a-1", "a-2"]
        assert scoped.get("/v1/devices/a-1").status_code == 200
        hidden = [scoped.get(f"/v1/devices/{name}") for name in ("b-1", "none")]
        assert [answer.status_code for answer in hidden] == [403, 403]
        assert hidden[0].json()["detail"] == hidden[1].json()["detail"]
        for method, path in (
            ("GET", "inventory"),
            ("POST", "revoke"),
            ("POST", "readmit"),
            ("GET", "telemetry"),
            ("GET", "telemetry/vitals"),
            ("GET", "telemetry/vitals/newest"),
            ("GET", "diagnostics"),
            ("POST", "diagnostics"),
            ("GET", "diagnostics/1"),
        ):
            assert scoped.request(method, f"/v1/devices/b-1/{path}").status_code == 403, path
        assert scoped.put("/v1/devices/a-1/labels", json={"tags": ["pilot", "lobby"]}).status_code == 403


def test_labels_are_replaced_and_the_audit_log_says_by_whom(controller) -> None:
    controller.enrolled("labelled", tags=["old"])
    token = controller.token(Role.OPERATOR, name="olga")
    with controller.client(token=token) as operator:
        changed = operator.put("/v1/devices/labelled/labels", json={"tags": ["new", "new", "x"], "site": "rome"})
        assert operator.put("/v1/devices/labelled/labels", json={"tags": [""]}).status_code == 400
        assert operator.put("/v1/devices/labelled/labels", json={"tags": [], "colour": "red"}).status_code == 400
        assert operator.put("/v1/devices/none/labels", json={"tags": []}).status_code == 404
    assert (changed.json()["tags"], changed.json()["site"]) == (["new", "x"], "rome")
    assert deeds(controller, "labelled") == [("olga", "devices.label")]


def test_a_device_is_expected_by_its_serial_once(controller) -> None:
    with controller.client(Role.OPERATOR) as operator:
        made = operator.post("/v1/devices", json={"serial": "SN-1", "id": "registered", "tags": ["pilot"]})
        assert (made.status_code, made.json()["state"]) == (201, "pre-registered")
        assert operator.post("/v1/devices", json={"serial": "SN-2"}).json()["id"] == "SN-2"
        assert operator.post("/v1/devices", json={"serial": "SN-1", "id": "other"}).status_code == 409
        assert operator.post("/v1/devices", json={"serial": "a/b c"}).status_code == 400
        assert operator.post("/v1/devices", json={"id": "x"}).status_code == 400
    with controller.client(Role.OPERATOR, tags=["pilot"]) as scoped:
        refused = [
            scoped.post("/v1/devices", json={"serial": "SN-3", "tags": tags}).status_code
            for tags in ([], ["lobby"], ["pilot", "lobby"])
        ]
        assert refused == [403, 403, 403]
        assert scoped.post("/v1/devices", json={"serial": "SN-3", "tags": ["pilot"]}).status_code == 201
    assert [action for _, action in deeds(controller, "registered")] == ["devices.register"]


def test_who_is_revoked_is_refused_at_once_and_may_be_let_in_again(controller) -> None:
    made = controller.enrolled("stolen", tags=["pilot"])
    with controller.device_client(made) as device, controller.client(Role.OPERATOR, tags=["pilot"]) as operator:
        assert device.get("/v1/devices").status_code == 403
        assert operator.post("/v1/devices/stolen/readmit").status_code == 409
        gone = operator.post("/v1/devices/stolen/revoke", json={"because": "stolen at night"}).json()
        assert (gone["state"], gone["revoked_because"]) == ("revoked", "stolen at night")
        assert operator.post("/v1/devices/stolen/revoke").status_code == 200
        assert device.get("/v1/devices").status_code == 401
        shown = operator.get("/v1/devices/stolen").json()["certificates"]
        assert [one["revoked_because"] for one in shown] == ["stolen at night"]
        assert operator.post("/v1/devices/stolen/readmit").json()["state"] == "pre-registered"
        assert device.get("/v1/devices").status_code == 401
    assert [action for _, action in deeds(controller, "stolen")] == ["devices.readmit", "devices.revoke"]


def test_a_suspended_device_may_only_renew_its_certificate(controller) -> None:
    made = controller.enrolled("paused", tags=["pilot"])
    with controller.device_client(made) as device, controller.client(Role.OPERATOR, tags=["pilot"]) as operator:
        assert operator.post("/v1/devices/paused/resume").status_code == 409
        held = operator.post("/v1/devices/paused/suspend", json={"because": "smells"}).json()
        assert (held["state"], held["suspended_because"], held["revoked"]) == ("suspended", "smells", None)
        assert operator.post("/v1/devices/paused/suspend").json() == held
        assert [one["id"] for one in operator.get("/v1/devices?state=suspended").json()["items"]] == ["paused"]
        refused = [
            device.get("/v1/self/assignment"),
            device.put("/v1/self/inventory", json={}),
            device.post("/v1/self/telemetry", content=b""),
            device.get("/v1/self/diagnostics"),
        ]
        assert [one.status_code for one in refused] == [403] * 4
        assert {one.json()["type"] for one in refused} == {"/problems/device-suspended"}
        assert "paused is suspended; it continues with what it runs" in refused[0].json()["detail"]
        assert controller.control.seen.waiting() == 1, "its polls are noted: it is not silent"
        renewal = {"csr": csr(new_key())}
        assert device.post("/v1/self/certificate", json=renewal).status_code == 200
        assert operator.delete("/v1/devices/paused").status_code == 409
        resumed = operator.post("/v1/devices/paused/resume").json()
        assert (resumed["state"], resumed["suspended"], resumed["suspended_because"]) == ("enrolled", None, "")
        assert device.post("/v1/self/telemetry", content=b"").status_code == 200
    deeds_done = [action for _, action in deeds(controller, "paused")]
    assert deeds_done[::2] == ["devices.resume", "devices.suspend"]


def test_an_enrolment_token_is_shown_once_and_opens_once(controller) -> None:
    with controller.client(Role.OPERATOR) as operator:
        made = operator.post("/v1/enrolments", json={"tags": ["pilot"], "site": "bonn"}).json()
        listed = operator.get("/v1/enrolments").json()["items"]
    assert made["url"] == controller.url
    assert all("token" not in entry for entry in listed)
    assert made["token"] not in str(listed)
    control = controller.control
    with control.database.write() as connection:
        redeemed = enrolment.redeem(connection, made["token"], "fresh", controller.clock())
        assert (redeemed.tags, redeemed.site) == (frozenset({"pilot"}), "bonn")
        with pytest.raises(TokenRefusedError):
            enrolment.redeem(connection, made["token"], "fresh", controller.clock())
    with controller.client(Role.OPERATOR) as operator:
        assert operator.delete(f"/v1/enrolments/{made['id']}").status_code == 404
        spare = operator.post("/v1/enrolments", json={"validity_h": 0.5}).json()
        assert operator.delete(f"/v1/enrolments/{spare['id']}").status_code == 204
        assert operator.post("/v1/enrolments", json={"validity_h": 0}).status_code == 400
        assert operator.post("/v1/enrolments", json={"device": "../x"}).status_code == 400


def test_a_scope_gives_only_its_own_tags_and_devices(controller) -> None:
    with controller.client(Role.OPERATOR) as operator:
        other = operator.post("/v1/enrolments", json={"tags": ["lobby"]}).json()["id"]
    with controller.client(Role.OPERATOR, tags=["pilot"]) as scoped:
        for body in ({}, {"tags": ["lobby"]}, {"tags": ["pilot", "lobby"]}, {"tags": ["pilot"], "device": "b-1"}):
            assert scoped.post("/v1/enrolments", json=body).status_code == 403, body
        mine = scoped.post("/v1/enrolments", json={"tags": ["pilot"], "device": "a-1"}).json()["id"]
        listed = [entry["id"] for entry in scoped.get("/v1/enrolments").json()["items"]]
        assert (mine in listed, other in listed) == (True, False)
        refused = [scoped.delete(f"/v1/enrolments/{number}") for number in (other, 10_000)]
        assert [answer.status_code for answer in refused] == [403, 403]
        assert refused[0].json()["detail"] == refused[1].json()["detail"]
        assert scoped.delete(f"/v1/enrolments/{mine}").status_code == 204


def test_pages_of_a_scope_name_no_token_beyond_it(controller) -> None:
    tags = ["mine", "theirs", "theirs", "mine", "theirs", "mine", "theirs"]
    with controller.client(Role.OPERATOR) as operator:
        made = [operator.post("/v1/enrolments", json={"tags": [tag]}).json()["id"] for tag in tags]
    mine = [number for number, tag in zip(made, tags, strict=True) if tag == "mine"]
    with controller.client(Role.OPERATOR, tags=["mine"]) as scoped:
        seen = [(page["items"][0]["id"], page["next"]) for page in pages(scoped, "/v1/enrolments") if page["items"]]
    assert seen == [(number, str(number)) for number in mine]
