"""Cases that broke the controller once: operators who want more than their scope, devices that send unreadable data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta

import pytest

from fleet.controller.access import Role
from fleet.controller.control.ingestion_lines import NESTING_LIMIT, NUMBER_LIMIT
from fleet.controller.database import certificates
from fleet.controller.database.certificates import Certificate
from fleet.controller.database.engine import Database
from tests.simulators.asking import ask, csr, enrolment_token, gap, new_key, record, tell
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import until


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        yield running


def token_of_a_pilot(controller: RunningController, device: str) -> str:
    """Return an enrolment token for this device, made by an operator whose scope is pilots only."""
    with controller.client(Role.OPERATOR, tags=["pilot"]) as pilot:
        answer = pilot.post("/v1/enrolments", json={"device": device, "tags": ["pilot"]})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def comes_with(controller: RunningController, token: str) -> int:
    return ask(controller, token=token, csr=csr(new_key())).status_code


def test_a_token_for_a_name_that_nobody_had_is_not_for_who_is_called_so_later(controller) -> None:
    waiting, enrolled, nobody = (token_of_a_pilot(controller, f"camera-{number}") for number in (1, 2, 3))
    with controller.client() as admin:
        made = admin.post("/v1/devices", json={"id": "camera-1", "serial": "SN-1", "tags": ["bank"]})
    assert made.status_code == 201
    assert comes_with(controller, enrolment_token(controller, "camera-2", tags=["bank"])) == 200
    assert [comes_with(controller, token) for token in (waiting, enrolled, nobody)] == [401, 401, 200]
    with controller.client() as admin:
        assert admin.get("/v1/devices/camera-1").json()["tags"] == ["bank"]
        assert admin.get("/v1/devices/camera-2").json()["tags"] == ["bank"]


def test_a_token_for_a_device_ends_where_the_device_leaves_the_scope_of_who_made_it(controller) -> None:
    controller.enrolled("door-1", tags=["pilot", "glass"])
    held, moved = token_of_a_pilot(controller, "door-1"), token_of_a_pilot(controller, "door-1")
    with controller.client() as admin:
        assert admin.put("/v1/devices/door-1/labels", json={"tags": ["pilot", "glass", "new"]}).status_code == 200
        assert comes_with(controller, held) == 200
        assert admin.put("/v1/devices/door-1/labels", json={"tags": ["bank"]}).status_code == 200
        assert comes_with(controller, moved) == 401
        deed = admin.get("/v1/audit", params={"subject": "door-1"}).json()["items"][0]
    assert (deed["action"], deed["details"]["enrolments_void"]) == ("devices.label", 1)


@pytest.mark.parametrize("number", ["9" * 40, "0" * 20 + "9" * 20, "0" * 20 + "9" * 5000])
def test_a_cursor_that_no_row_has_is_refused(controller, number) -> None:
    controller.enrolled("cursor")
    with controller.client(Role.VIEWER) as viewer:
        answer = viewer.get(f"/v1/devices/cursor/telemetry/vitals?after=0.{number}")
    assert answer.status_code == 400
    assert "BOOT_EPOCH.SEQ" in answer.json()["detail"]


def test_a_device_that_counts_as_far_as_numbers_go_hides_nothing_beyond_the_first_page(controller) -> None:
    last = NUMBER_LIMIT - 1
    lines = [gap("vitals", 1, last - 2, last), *(record("vitals", seq, {}, epoch=last) for seq in (last - 1, last))]
    with controller.device_client(controller.enrolled("far")) as device:
        assert tell(device, *lines).status_code == 200
    found: list[int] = []
    after: str | None = ""
    with controller.client(Role.VIEWER) as viewer:
        while after is not None:
            page = viewer.get("/v1/devices/far/telemetry/vitals", params={"limit": 1, "after": after}).json()
            found, after = found + [row["seq"] for row in page["items"]], page["next"]
        beyond = [viewer.get(f"/v1/devices/far/telemetry/vitals?after={last}.{number}") for number in (last, "9" * 19)]
    assert found == [last - 1, last]
    assert [(answer.status_code, answer.json()["items"]) for answer in beyond] == [(200, [])] * 2


@pytest.mark.parametrize("method", ["get", "put", "post", "delete"])
def test_the_openapi_document_says_where_a_packing_may_not_be_understood(controller, method) -> None:
    with controller.device_client(controller.enrolled("packs")) as device:
        paths = device.get("/schema/openapi.json").json()["paths"]
        asked = {path: item[method] for path, item in paths.items() if method in item and path.startswith("/v1/self/")}
        for path, operation in asked.items():
            refused = device.request(method, path, headers={"content-encoding": "br"}, content=b"{}")
            assert (refused.status_code == 415) == ("415" in operation["responses"]), path


def test_no_other_route_says_that_a_packing_may_not_be_understood(controller) -> None:
    with controller.client() as admin:
        paths = admin.get("/schema/openapi.json").json()["paths"]
    told = [path for path, item in paths.items() for one in item.values() if "415" in one.get("responses", ())]
    assert told
    assert all(path.startswith("/v1/self/") for path in told), told


def nested(depth: int) -> str:
    """Return a JSON object that is nested so deep."""
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("depth", [NESTING_LIMIT + 1, 900, 970, 5000])
def test_what_is_nested_too_deep_to_be_read_is_not_kept(controller, depth) -> None:
    line = {"stream": "vitals", "boot_epoch": 1, "seq": 1, "at": "2026-01-01T00:00:00Z", "kind": "vitals"}
    sent = f'{json.dumps(line)[:-1]}, "document": {nested(depth)}}}'
    with controller.device_client(controller.enrolled("deep")) as device:
        refused = [
            device.post("/v1/self/telemetry", content=sent),
            device.put("/v1/self/inventory", content=nested(depth)),
            device.post("/v1/self/diagnostics", content=f'{{"id": 1, "answer": {nested(depth)}}}'),
        ]
    assert [answer.status_code for answer in refused] == [400, 400, 400]
    with controller.client(Role.VIEWER) as viewer:
        assert viewer.get("/v1/devices/deep/telemetry/vitals").json()["items"] == []


def test_what_is_nested_as_far_as_is_allowed_is_kept_and_read(controller) -> None:
    line = {"stream": "vitals", "boot_epoch": 1, "seq": 1, "at": "2026-01-01T00:00:00Z", "kind": "vitals"}
    line["document"] = json.loads(nested(NESTING_LIMIT))
    with controller.device_client(controller.enrolled("wide")) as device:
        assert device.post("/v1/self/telemetry", content=json.dumps(line)).status_code == 200
        assert device.put("/v1/self/inventory", content=nested(NESTING_LIMIT)).status_code == 204
    with controller.client(Role.VIEWER) as viewer:
        assert viewer.get("/v1/devices/wide/telemetry/vitals").json()["items"][0]["document"] == line["document"]
        assert viewer.get("/v1/devices/wide/inventory").json() == line["document"]


def test_a_word_that_comes_too_soon_is_told_what_has_to_be_before_it(controller) -> None:
    target = controller.repository.add_release("reader", "1")
    spec = {"name": "reader-1", "slot": "reader", "target": target, "query": "all", "waves": [{"percent": 100}]}
    spec |= {"success": {"min_sample": 1, "min_percent": 90}, "abort": {"min_sample": 5, "max_failed_percent": 5}}
    with controller.client() as admin:
        until(lambda: admin.get("/v1/releases").json()["items"], "the release was not read")
        made = admin.post("/v1/rollouts", json=spec)
        assert made.status_code == 201, made.text
        early = [admin.post(f"/v1/rollouts/{made.json()['id']}/{word}") for word in ("start", "rollback")]
    assert [answer.status_code for answer in early] == [409, 409]
    assert "the rollout is draft; for that it has to be approved" in early[0].json()["detail"]
    assert "for that it has to be aborted" in early[1].json()["detail"]


def test_a_clock_that_was_far_ahead_for_a_moment_costs_no_device_its_place(controller) -> None:
    before = controller.enrolled("ahead")
    with controller.control.database.write() as connection:
        made = controller.authority.sign_csr(csr(new_key()).encode(), "ahead", controller.clock())
        renewed = Certificate(made.serial, "ahead", made.issued, made.expires + timedelta(hours=1))
        certificates.add(connection, renewed)
        certificates.forget(connection, controller.clock() + timedelta(days=4000))
    with controller.control.database.read() as connection:
        kept = certificates.of_device(connection, "ahead", controller.control.database.settings)
        assert certificates.find(connection, before.certificate.serial) is None
    assert [one.serial for one in kept] == [made.serial]


def test_the_path_of_a_request_that_crashes_begins_no_line_of_the_log(
    controller: RunningController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_self: Database) -> object:
        raise RuntimeError("a defect")

    with controller.client() as admin, monkeypatch.context() as patch:
        patch.setattr(Database, "read", broken)
        assert admin.get("/v1/devices/a%0AERROR fleet.audit: all is lost").status_code == 500
    (line,) = (one.getMessage() for one in caplog.records if one.name == "fleet.controller.api.application")
    assert line.startswith("request crashed: ")
    assert " /v1/devices/a%0AERROR%20fleet.audit:%20all%20is%20lost;" in line
