"""Laws of all routes of the controller: how it refuses, its OpenAPI document. Rights: `test_fleet_api_walk`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.controller.access import Action
from fleet.controller.api.application import HANDLERS
from fleet.controller.api.document import SchemaRenderer
from fleet.controller.api.identity import ACTION
from tests.simulators.controller import RunningController, controlling


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        yield running


def test_every_action_is_what_some_route_does() -> None:
    """All but two, which routes ask for themselves: they depend on the role of a draft, or the token of an upload."""
    asked_there = {Action.DRAFTS_KEYS, Action.UPLOADS_REMOVE}
    assert {handler.opt.get(ACTION) for handler in HANDLERS} - {None} == set(Action) - asked_there


def test_an_unknown_path_and_method_are_problems(controller) -> None:
    with controller.client() as client:
        for method, path, status in (
            ("GET", "/v1/nothing", 404),
            ("DELETE", "/v1/audit", 405),
            ("GET", "/schema/x", 404),
        ):
            answer = client.request(method, path)
            assert (answer.status_code, answer.json()["status"]) == (status, status)
            assert answer.headers["content-type"] == "application/problem+json"


def test_the_openapi_document_is_made_once(controller, monkeypatch) -> None:
    """Anybody may ask for it, and it is large."""
    with controller.client(None) as nobody:
        first = nobody.get("/schema/openapi.json")
        monkeypatch.delattr(SchemaRenderer, "_made")
        again = nobody.get("/schema/openapi.json")
    assert (again.status_code, again.content) == (200, first.content)


def test_a_load_balancer_sees_that_the_database_answers(controller) -> None:
    with controller.client(None) as nobody:
        assert nobody.get("/health/live").json() == {"status": "live"}
        assert nobody.get("/health/ready").json() == {"status": "ready"}


def test_the_type_of_a_problem_is_a_document_of_the_controller(controller) -> None:
    with controller.client(None) as nobody:
        refused = nobody.get("/v1/devices").json()
        explained = nobody.get(refused["type"])
        assert explained.status_code == 200
        assert (explained.json()["type"], explained.json()["status"]) == ("/problems/unauthenticated", 401)
        assert explained.json() in nobody.get("/problems").json()["types"]
        assert nobody.get("/problems/nothing").json()["type"] == "/problems/not-found"
