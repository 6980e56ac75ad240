"""ETag, If-None-Match and If-Match of operators' resources."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

from fleet.controller.api.application import HANDLERS
from fleet.controller.api.conditions import STATE, is_operators, is_tagged
from fleet.controller.config import FleetConfig, parse_config
from fleet.controller.database import devices
from tests.simulators import databases
from tests.simulators.controller import RunningController, controlling
from tests.simulators.operator import operator_with
from tests.simulators.rolled_fleet import document
from tests.simulators.walked_api import Ground, Operation, operations

pytestmark = pytest.mark.timeout(120)
OLD = {"if-match": '"00000000000000000000000000000000"'}
CREATING = {
    *("/v1/devices", "/v1/enrolments", "/v1/tokens", "/v1/rollouts", "/v1/rollouts/preview"),
    *("/v1/devices/{device}/diagnostics", "/v1/devices/tags", "/v1/rollouts/archive", "/v1/blobs"),
}
"""Routes that make something new or change many devices. Other changes by operators name the state they mean."""


@pytest.fixture(scope="module", params=databases.ALIKE)
def controller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    folder = tmp_path_factory.mktemp("controller")
    with databases.url(request.param, folder) as url:
        config = FleetConfig()
        with controlling(folder, replace(config, database=replace(config.database, url=url))) as running:
            yield running


@pytest.fixture
def admin(controller: RunningController) -> Iterator[httpx.Client]:
    with controller.client() as client:
        yield client


@pytest.fixture(scope="module")
def ground(controller: RunningController) -> Iterator[Ground]:
    with controller.client() as admin:
        yield Ground(controller, admin)


def _routes(methods: set[str], *, stated: bool | None = None) -> dict[str, str]:
    """Return the path of the state that a route's If-Match names, by method and path."""
    return {
        f"{method} {re.sub(r':[a-z]+', '', path)}": str(handler.opt.get(STATE, ""))
        for handler in HANDLERS
        for path in handler.paths
        for method in handler.http_methods & methods
        if is_operators(handler) and stated in {None, STATE in handler.opt}
    }


def _shown(ground: Ground, operation: Operation, state: str) -> tuple[str, str]:
    """Return the path of a route and that of what shows its state, for one thing that is there."""
    names = re.findall(r"{(\w+)}", operation.path)
    device = ground.device().certificate.device if "device" in names else ""
    values = {name: ground._value(name, device) for name in names}
    return operation.path.format(**values), state.format(**values)


def test_every_change_names_a_state_unless_it_creates() -> None:
    without = _routes({"POST", "PUT", "PATCH", "DELETE"}, stated=False)
    assert {route.partition(" ")[2] for route in without} == CREATING
    with_state = _routes({"POST", "PUT", "PATCH", "DELETE"}, stated=True)
    gets = _routes({"GET"})
    assert len(with_state) > 10
    assert all(f"GET {state}" in gets for state in with_state.values())


def test_every_get_has_a_strong_tag_and_304(controller, ground, admin) -> None:
    tagged = {re.sub(r":[a-z]+", "", path) for handler in HANDLERS if is_tagged(handler) for path in handler.paths}
    walked = [one for one in operations(controller) if one.method == "GET" and one.path in tagged]
    assert len(walked) == len(tagged) > 15
    for operation in walked:
        path = ground.path(operation)
        first = admin.get(path)
        assert re.fullmatch(r'"[0-9a-f]{32}"', first.headers["etag"]), path
        same = admin.get(path, headers={"if-none-match": f'"x", W/{first.headers["etag"]}'})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", first.headers["etag"]), path
        other = admin.get(path, headers={"if-none-match": '"x"'})
        assert (other.status_code, other.content) == (200, first.content)


def test_a_change_by_an_old_state_is_refused_and_changes_nothing(controller, ground, admin) -> None:
    stated = _routes({"POST", "PUT", "PATCH", "DELETE"}, stated=True)
    walked = [one for one in operations(controller) if str(one) in stated]
    assert len(walked) == len(stated)
    for operation in walked:
        path, shown = _shown(ground, operation, stated[str(operation)])
        body = ground.body(operation)
        with ground.untouched():
            refused = admin.request(operation.method, path, json=body, headers=OLD)
        assert (refused.status_code, refused.json()["type"]) == (412, "/problems/precondition-failed"), str(operation)
        assert stated[str(operation)] in refused.json()["detail"]
        current = {"if-match": f'"x", {admin.get(shown).headers["etag"]}'}
        taken = admin.request(operation.method, path, json=body, headers=current)
        assert taken.is_success or taken.status_code == 409, (str(operation), taken.text)


def test_what_creates_has_no_state(controller, ground, admin) -> None:
    creating = _routes({"POST"}, stated=False)
    for operation in (one for one in operations(controller) if str(one) in creating):
        path, body = ground.path(operation), ground.body(operation)
        with ground.untouched():
            assert admin.post(path, json=body, headers=OLD).status_code == 400, str(operation)
        assert admin.post(path, json=body, headers={"if-match": "*"}).is_success, str(operation)


def test_a_weak_tag_does_not_match(controller, admin) -> None:
    controller.enrolled("weak-1")
    weak = f"W/{admin.get('/v1/devices/weak-1/labels').headers['etag']}"
    body, path = {"tags": ["a"]}, "/v1/devices/weak-1/labels"
    assert admin.put(path, json=body, headers={"if-match": weak}).status_code == 412
    assert admin.put(path, json=body, headers={"if-match": "*"}).status_code == 200


@pytest.mark.parametrize("said", ["abc", '"a" "b"', '"a",', ", ".join(['"a"'] * 17), '"' + "x" * 129 + '"'])
def test_what_is_no_tag_is_refused(controller, admin, said) -> None:
    assert admin.get("/v1/devices", headers={"if-none-match": said}).status_code == 400
    assert admin.post("/v1/devices/x/revoke", headers={"if-match": said}).status_code in {400, 404}
    controller.enrolled("malformed-1")
    assert admin.post("/v1/devices/malformed-1/revoke", headers={"if-match": said}).status_code == 400


def test_tags_of_labels_do_not_change_with_what_a_device_reports(controller, admin) -> None:
    controller.enrolled("labelled-1")
    labels, device = (admin.get(f"/v1/devices/labelled-1{end}").headers["etag"] for end in ("/labels", ""))
    with controller.control.database.write() as connection:
        devices.touch(connection, {"labelled-1": controller.clock()})
    again = [admin.get(f"/v1/devices/labelled-1{end}").headers["etag"] for end in ("/labels", "")]
    assert (again[0] == labels, again[1] == device) == (True, False)


def test_of_two_who_read_the_same_one_changes_it(controller, admin) -> None:
    """However close to each other they are."""
    controller.enrolled("raced-1")
    path = "/v1/devices/raced-1/labels"
    with ThreadPoolExecutor(4) as threads:
        for turn in range(5):
            header = {"if-match": admin.get(path).headers["etag"]}
            put = partial(_put_together, admin, path, header, threading.Barrier(4))
            assert sorted(threads.map(put, [f"t{turn}-{number}" for number in range(4)])) == [200, 412, 412, 412]


def _put_together(client: httpx.Client, path: str, header: dict[str, str], barrier: threading.Barrier, tag: str) -> int:
    barrier.wait(60)
    return client.put(path, json={"tags": [tag]}, headers=header).status_code


def test_a_draft_is_revised_by_who_saw_it(ground, admin) -> None:
    made = admin.post("/v1/rollouts", json=document()).json()
    path = f"/v1/rollouts/{made['id']}"
    seen = {"if-match": admin.get(path).headers["etag"]}
    assert admin.put(path, json=document(name="mine"), headers=seen).status_code == 200
    assert admin.put(path, json=document(name="theirs"), headers=seen).status_code == 412
    assert admin.get(path).json()["name"] == "mine"


def test_a_running_rollout_looks_the_same_until_something_happens(ground, admin) -> None:
    made = admin.post("/v1/rollouts", json=document()).json()
    path = f"/v1/rollouts/{made['id']}"
    first, again = (admin.get(path).headers["etag"] for _ in range(2))
    assert first == again
    assert admin.post(f"{path}/approve", json={"spec": made["spec_digest"]}).status_code == 200
    assert admin.post(f"{path}/abort", headers={"if-match": first}).status_code == 412


def test_a_repeat_is_answered_although_the_state_is_another_by_then(controller, admin) -> None:
    controller.enrolled("repeated-1")
    header = {"if-match": admin.get("/v1/devices/repeated-1").headers["etag"], "idempotency-key": "repeated-1"}
    first, again = (admin.post("/v1/devices/repeated-1/revoke", headers=header) for _ in range(2))
    assert (first.status_code, again.content) == (200, first.content)


def test_where_a_state_is_required(tmp_path: Path) -> None:
    required = parse_config("[requests]\nrequire_if_match = true\n", "fleet.toml").requests
    with controlling(tmp_path, replace(FleetConfig(), requests=required)) as running, running.client() as admin:
        running.enrolled("camera-1")
        refused = admin.post("/v1/devices/camera-1/revoke")
        assert (refused.status_code, refused.json()["type"]) == (428, "/problems/precondition-required")
        assert admin.post("/v1/devices", json={"serial": "s1"}).status_code == 201
        assert admin.get("/v1/devices/camera-1").json()["state"] == "enrolled"
        verbs = operator_with(running, admin.headers["authorization"].removeprefix("Bearer "))
        assert verbs.told("devices", "label", "camera-1", "--add", "roof")["tags"] == ["roof"]
        assert verbs.told("devices", "revoke", "camera-1", "--yes")["state"] == "revoked"
        assert verbs.told("devices", "remove", "camera-1") == {"removed": "camera-1"}
