"""What holds for all routes of the controller: who may, how it refuses, its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fleet.access import RULES, Action, Role
from fleet.api.application import HANDLERS
from fleet.api.document import Document
from fleet.api.identity import ACTION
from tests.simulators.controller import RunningController, controlling

PUBLIC = {("POST", "/v1/enrol"), ("GET", "/health/live"), ("GET", "/health/ready")}
"""Routes that ask for something else than a token or certificate."""
ROUTES = [
    (method, path, handler.opt.get(ACTION))
    for handler in HANDLERS
    for path in handler.paths
    for method in sorted(handler.http_methods)
    if (method, path) not in PUBLIC and method != "OPTIONS"
]


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        yield running


def test_every_action_is_what_some_route_does() -> None:
    assert {action for _, _, action in ROUTES} == set(Action)


def _path(template: str) -> str:
    """With something in place of each parameter."""
    parts = [("7" if ":int" in part else "x") if part.startswith("{") else part for part in template.split("/")]
    return "/".join(parts)


@pytest.mark.parametrize(("method", "path", "action"), ROUTES)
def test_no_route_is_open_to_who_says_nothing_or_something_wrong(controller, method, path, action) -> None:
    assert action is not None, f"{method} {path} does not say what it does"
    with controller.client(None) as nobody:
        assert nobody.request(method, _path(path)).status_code == 401
        refused = nobody.request(method, _path(path), headers={"authorization": "Bearer eft_wrong"})
        assert refused.status_code in {400, 401}
        assert refused.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("role", list(Role))
def test_a_token_reads_what_its_role_may_and_nothing_else(controller, role) -> None:
    with controller.client(role) as client:
        for method, path, action in ROUTES:
            if method != "GET":
                continue
            status = client.get(_path(path)).status_code
            allowed = role in RULES[action].roles
            assert (status not in {401, 403}) == allowed, (path, status)


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


def test_the_openapi_document_names_every_route(controller) -> None:
    with controller.client(None) as nobody:
        document = nobody.get("/schema/openapi.json").json()
    named = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert {(method, path.replace(":str", "").replace(":int", "")) for method, path, _ in ROUTES} <= named


def test_the_openapi_document_is_made_once(controller, monkeypatch) -> None:
    """Anybody may ask for it, and it is large."""
    with controller.client(None) as nobody:
        first = nobody.get("/schema/openapi.json")
        monkeypatch.delattr(Document, "_made")
        again = nobody.get("/schema/openapi.json")
    assert (again.status_code, again.content) == (200, first.content)


def test_a_load_balancer_sees_that_the_database_answers(controller) -> None:
    with controller.client(None) as nobody:
        assert nobody.get("/health/live").json() == {"status": "live"}
        assert nobody.get("/health/ready").json() == {"status": "ready"}
