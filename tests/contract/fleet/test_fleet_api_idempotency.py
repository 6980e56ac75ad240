"""`Idempotency-Key` over HTTP: every POST of an operator is carried out once, also if its answer is lost."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import httpx
import pytest

from fleet.controller.access import Role
from fleet.controller.api.application import HANDLERS
from fleet.controller.api.idempotency import KEY_CHARACTERS, takes_key
from fleet.controller.config import FleetConfig
from fleet.controller.database import audit, idempotency
from tests.simulators import databases
from tests.simulators.controller import RunningController, controlling
from tests.simulators.walked_api import Ground, operations

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=databases.KINDS)
def controller(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    folder = tmp_path_factory.mktemp("controller")
    with databases.url(request.param, folder) as url:
        config = FleetConfig()
        config = replace(config, database=replace(config.database, url=url))
        with controlling(folder, config) as running:
            yield running


@pytest.fixture
def admin(controller: RunningController) -> Iterator[httpx.Client]:
    with controller.client() as client:
        yield client


def keyed(key: str = "") -> dict[str, str]:
    return {"idempotency-key": key or str(uuid.uuid4())}


def name() -> str:
    return f"token {uuid.uuid4()}"


def test_every_operators_post_takes_a_key() -> None:
    posts = [handler for handler in HANDLERS if "POST" in handler.http_methods]
    without = {path for handler in posts if not takes_key(handler) for path in handler.paths}
    assert {path for path in without if not path.startswith("/v1/self/")} == {"/v1/enrol"}


def test_every_post_answers_a_repeat_with_its_first_answer(controller, admin) -> None:
    ground, named = Ground(controller, admin), {"_".join(("post", *_plain(path))) for path in _keyed_paths()}
    walked = [operation for operation in operations(controller) if operation.id in named]
    assert len(walked) == len(named) > 10
    for operation in walked:
        path, body, header = ground.path(operation), ground.body(operation), keyed()
        first = admin.post(path, json=body, headers=header)
        with ground.untouched():
            again = admin.post(path, json=body, headers=header)
        assert (again.status_code, "idempotency-replayed" in first.headers) == (first.status_code, False)
        if first.is_success and not operation.path.endswith("preview"):  # which writes nothing
            assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true"), str(operation)


def _keyed_paths() -> set[str]:
    return {path for handler in HANDLERS if takes_key(handler) for path in handler.paths}


def _plain(path: str) -> list[str]:
    return [part.strip("{}").partition(":")[0] for part in path.strip("/").split("/")]


def test_a_repeat_gets_the_secret_again_and_nothing_is_made_twice(controller, admin) -> None:
    wanted, header = {"name": name(), "role": "viewer"}, keyed()
    first, again = (admin.post("/v1/tokens", json=wanted, headers=header) for _ in range(2))
    assert (first.status_code, first.json()) == (201, again.json())
    with controller.client(token=again.json()["token"]) as viewer:
        assert viewer.get("/v1/devices").status_code == 200
    assert admin.post("/v1/tokens", json=wanted, headers=keyed()).status_code == 409


def test_the_database_holds_no_secret_in_clear(controller, admin) -> None:
    header = keyed()
    secret = admin.post("/v1/tokens", json={"name": name(), "role": "viewer"}, headers=header).json()["token"]
    with controller.control.database.read() as connection:
        rows = connection.exec_driver_sql("SELECT answer, key FROM idempotency_keys").all()
    assert rows
    assert not any(secret.encode() in bytes(answer) or b"prefix" in bytes(answer) for answer, _ in rows)
    assert header["idempotency-key"] not in {key for _, key in rows}


@pytest.mark.parametrize("form", ['"{}"', "{}"])
def test_a_key_is_the_same_with_and_without_quotes(admin, form) -> None:
    key, wanted = str(uuid.uuid4()), {"name": name(), "role": "viewer"}
    first = admin.post("/v1/tokens", json=wanted, headers=keyed(key))
    assert admin.post("/v1/tokens", json=wanted, headers=keyed(form.format(key))).content == first.content


def test_another_request_with_the_same_key_is_refused(admin) -> None:
    header, wanted = keyed(), {"name": name(), "role": "viewer"}
    assert admin.post("/v1/tokens", json=wanted, headers=header).status_code == 201
    for path, body in (("/v1/tokens", {**wanted, "name": name()}), ("/v1/enrolments", {}), ("/v1/tokens?x=1", wanted)):
        refused = admin.post(path, json=body, headers=header)
        assert (refused.status_code, refused.json()["type"]) == (422, "/problems/idempotency-key-reused")


def test_keys_of_two_callers_are_two_keys(controller, admin) -> None:
    header, wanted = keyed(), {"serial": f"serial-{uuid.uuid4()}"}
    assert admin.post("/v1/devices", json=wanted, headers=header).status_code == 201
    with controller.client(Role.OPERATOR) as other:
        assert other.post("/v1/devices", json=wanted, headers=header).status_code == 409
        assert other.post("/v1/devices", json={"serial": f"serial-{uuid.uuid4()}"}, headers=header).status_code == 201


def test_a_refused_request_leaves_its_key_free(admin) -> None:
    header = keyed()
    assert admin.post("/v1/devices/none/revoke", headers=header).status_code == 404
    assert admin.post("/v1/tokens", json={"name": name(), "role": "viewer"}, headers=header).status_code == 201


@pytest.mark.parametrize("key", ["", "a b", "a,b", 'a"b', "x" * (KEY_CHARACTERS + 1), '"', "a\\b"])
def test_what_is_no_key_is_refused(admin, key) -> None:
    wanted = {"name": name(), "role": "viewer"}
    refused = admin.post("/v1/tokens", json=wanted, headers={"idempotency-key": key})
    assert (refused.status_code, refused.json()["type"]) == (400, "/problems/invalid-request")
    several = [("idempotency-key", "a"), ("idempotency-key", "b")]
    assert admin.post("/v1/tokens", json=wanted, headers=several).status_code == 400


def test_the_longest_key_is_taken(admin) -> None:
    wanted = {"name": name(), "role": "viewer"}
    assert admin.post("/v1/tokens", json=wanted, headers=keyed("k" * KEY_CHARACTERS)).status_code == 201


def test_a_caller_who_lost_its_rights_gets_no_answer_again(controller) -> None:
    with controller.client() as other:
        header, wanted = keyed(), {"name": name(), "role": "viewer"}
        made_one = other.post("/v1/tokens", json=wanted, headers=header)
        listed = [one["id"] for one in other.get("/v1/tokens?limit=1000").json()["items"]]
        assert other.delete(f"/v1/tokens/{max(set(listed) - {made_one.json()['id']})}").status_code == 200
        assert other.post("/v1/tokens", json=wanted, headers=header).status_code == 401


def test_the_first_is_in_progress(controller, admin, monkeypatch) -> None:
    """The second is told to come later; the first ends well."""
    reached, proceed = threading.Event(), threading.Event()
    append = audit.append

    def slow(*given):
        if given[1].action == "tokens.create":
            reached.set()
            assert proceed.wait(60)
        return append(*given)

    monkeypatch.setattr(audit, "append", slow)
    wanted, header, answers = {"name": name(), "role": "viewer"}, keyed(), []
    first = threading.Thread(target=lambda: answers.append(admin.post("/v1/tokens", json=wanted, headers=header)))
    first.start()
    assert reached.wait(60)
    with controller.client(token=admin.headers["authorization"].removeprefix("Bearer ")) as same:
        second = same.post("/v1/tokens", json=wanted, headers=header)
    proceed.set()
    first.join()
    assert (second.status_code, second.json()["type"]) == (409, "/problems/request-in-progress")
    assert int(second.headers["retry-after"]) >= 1
    assert answers[0].status_code == 201
    assert admin.post("/v1/tokens", json=wanted, headers=header).content == answers[0].content


def test_a_revoked_device_is_turned_away_after_a_keyed_request(controller, admin) -> None:
    """Effects in memory take place, too."""
    device = controller.enrolled(f"camera-{uuid.uuid4()}")
    with controller.device_client(device) as client:
        assert client.get("/v1/self/diagnostics").status_code == 200
        admin.post(f"/v1/devices/{device.certificate.device}/revoke", headers=keyed())
        assert device.certificate.serial in controller.control.revocations.serials()
        assert client.get("/v1/self/diagnostics").status_code == 401


def test_a_request_is_repeated_though_the_clock_leapt_until_its_answer_is_removed(controller, admin) -> None:
    wanted, header = {"tags": ["pilot"]}, keyed()

    def asked() -> int:
        return admin.post("/v1/enrolments", json=wanted, headers=header).json()["id"]

    first = asked()
    for days in (1, -1, -365, 0):
        controller.clock.ahead = timedelta(days=days, seconds=1)
        assert asked() == first
    controller.clock.ahead = timedelta()
    with controller.control.database.write() as connection:
        assert idempotency.forget(connection, controller.clock() + timedelta(seconds=1)) >= 1
    assert asked() != first
