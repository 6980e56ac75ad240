"""Every route of the OpenAPI document is asked by everybody: who may, gets in; who may not, changes and learns nothing.

What is expected is written down here, from the guide's table of roles, not taken from the code that decides.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import httpx
import pytest

from fleet.controller.access import Role
from fleet.controller.api.application import HANDLERS
from fleet.controller.database import tokens
from fleet.controller.database.credentials import new_credential
from tests.simulators.controller import RunningController, controlling
from tests.simulators.walked_api import Ground, Operation, operations

pytestmark = pytest.mark.timeout(120)
EVERYBODY = {"viewer", "operator", "publisher", "admin"}
OPERATORS, DRAFTERS, ADMIN, DEVICES = {"operator", "admin"}, {"operator", "publisher", "admin"}, {"admin"}, set[str]()
PUBLISHERS = {"publisher", "admin"}
PUBLIC = {"POST /v1/enrol", "GET /health/live", "GET /health/ready", "GET /problems", "GET /problems/{kind}"}
BESIDE = ("/schema/openapi.json", "/repository/metadata/timestamp.json")
"""Open to all, and not in the document."""
MAY = (
    (r"\w+ /v1/self/.*", DEVICES),
    (r"\w+ /v1/tokens.*", ADMIN),
    (r"\w+ /v1/audit.*", ADMIN),
    (r"\w+ /v1/enrolments.*", OPERATORS),
    (r"\w+ /v1/devices/{device}/diagnostics.*", OPERATORS),
    (r"POST /v1/publication", OPERATORS),
    (r"GET /v1/(drafts|blobs|publication).*", EVERYBODY),
    (r"\w+ /v1/(drafts|blobs).*", PUBLISHERS),
    (r"GET /(v1/(devices|events|alerts|changes|releases|rollouts|telemetry).*|metrics)", EVERYBODY),
    (r"(POST /v1/rollouts(/preview)?|PUT /v1/rollouts/{rollout})", DRAFTERS),
    (r"\w+ /v1/rollouts/({rollout}/.*|archive)", OPERATORS),
    (r"\w+ /v1/devices.*", OPERATORS),
)
"""The guide's table of roles; the first line that fits holds. A route that fits none fails the walk."""
WHOLE_FLEET = re.compile(
    r"\w+ (/v1/(tokens|audit|drafts|blobs|publication)|/metrics).*"
    r"|PUT /v1/devices/{device}/labels|POST /v1/devices/tags"
)
"""Routes for tokens without a scope only."""
NAMED = re.compile(r".*{(device|rollout|enrolment_id)}.*|POST /v1/(devices|enrolments)")
"""Routes on things that bear a tag."""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningController]:
    with controlling(tmp_path_factory.mktemp("controller")) as running:
        yield running


@pytest.fixture(scope="module")
def ground(controller: RunningController) -> Iterator[Ground]:
    with controller.client(Role.ADMIN) as admin:
        yield Ground(controller, admin)


@pytest.fixture(scope="module")
def walk(controller: RunningController) -> list[Operation]:
    """Return all routes that are not public."""
    return [operation for operation in operations(controller) if str(operation) not in PUBLIC]


def may(operation: Operation) -> set[str]:
    return next(roles for pattern, roles in MAY if re.fullmatch(pattern, str(operation)))


def test_the_document_names_every_route_and_no_other(controller) -> None:
    routes = {
        f"{method} {re.sub(r':[a-z]+', '', path)}"
        for handler in HANDLERS
        for path in handler.paths
        for method in handler.http_methods
    }
    assert {str(operation) for operation in operations(controller)} == routes


def test_what_is_open_to_all_is_named(controller) -> None:
    assert {str(operation) for operation in operations(controller) if operation.public} == PUBLIC
    with controller.client(None) as nobody:
        opened = [path for _, path in (name.split(" ") for name in PUBLIC) if path.startswith("/health")]
        assert [nobody.get(path).status_code for path in (*opened, *BESIDE)] == [200] * 4


def _ill_tokens(controller: RunningController) -> dict[str, str]:
    """Return tokens that do not hold: one unknown, and two of admins, expired and revoked."""
    made, now = {name: new_credential("eft_") for name in ("unknown", "expired", "revoked")}, controller.clock()
    settings = controller.control.database.settings
    with controller.control.database.write() as connection:
        for name, begun in (("expired", now - timedelta(days=2)), ("revoked", now)):
            ends = begun + timedelta(days=1)
            shared = {"role": Role.ADMIN, "expires": ends, "now": begun, "by": "the test"}
            number = tokens.create(connection, made[name], settings, name=name, **shared)
            if name == "revoked":
                tokens.revoke(connection, number, now)
    return {name: credential.text for name, credential in made.items()}


def test_nobody_and_who_shows_a_token_that_does_not_hold_is_not_known(controller, ground, walk) -> None:
    with ExitStack() as stack:
        clients = {"nobody": stack.enter_context(controller.client(None))}
        for name, token in _ill_tokens(controller).items():
            clients[name] = stack.enter_context(controller.client(None, token=token))
        for operation in walk:
            path, body = ground.path(operation), ground.body(operation)
            with ground.untouched():
                answers = {name: operation.asked(client, path, body) for name, client in clients.items()}
            found = {name: answer.status_code for name, answer in answers.items()}
            assert found == dict.fromkeys(clients, 401), str(operation)
            assert {answer.headers["content-type"] for answer in answers.values()} == {"application/problem+json"}


def test_of_who_says_nothing_no_body_is_read(controller, ground, walk) -> None:
    with controller.client(None) as nobody:
        for operation in walk:
            answer = nobody.request(operation.method, ground.path(operation), content=b"{")
            assert answer.status_code == 401, str(operation)


@pytest.mark.parametrize("role", sorted(EVERYBODY))
def test_of_a_role_that_may_not_no_body_is_read(controller, ground, walk, role) -> None:
    with controller.client(Role(role)) as client:
        for operation in walk:
            if role not in may(operation):
                answer = client.request(operation.method, ground.path(operation), content=b"{")
                assert answer.status_code == 403, str(operation)


def test_a_role_that_may_not_is_refused_before_its_body_comes(controller) -> None:
    """The connection waits for the answer, and sends no byte of the body that its head announces."""
    url, context = httpx.URL(controller.url), ssl.create_default_context(cafile=str(controller.ca_file))
    head = f"POST /v1/devices/tags HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {controller.token(Role.VIEWER)}\r\n"
    with (
        socket.create_connection((url.host, url.port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=url.host) as connection,
    ):
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 9\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 403 ")


def _refused(operation: Operation, client: httpx.Client, path: str, body: object) -> str:
    """Return the reason of the refusal."""
    answer = operation.asked(client, path, body)
    assert answer.status_code == 403, (str(operation), answer.status_code, answer.text)
    assert answer.headers["content-type"] == "application/problem+json"
    return str(answer.json()["detail"])


def _refused_alike(ground: Ground, operation: Operation, client: httpx.Client, name: str) -> None:
    """Check that the refusal is the same whether the device is there or not."""
    path, body = ground.path(operation, name), ground.body(operation)
    with ground.untouched():
        why = _refused(operation, client, path, body)
        assert _refused(operation, client, path.replace(name, "absent"), body) == why


@pytest.mark.parametrize("role", sorted(EVERYBODY))
def test_a_role_may_what_the_guide_says_and_nothing_else(controller, ground, walk, role) -> None:
    name = ground.device().certificate.device
    with controller.client(Role(role)) as client:
        for operation in walk:
            if role in may(operation):
                answer = operation.asked(client, ground.path(operation), ground.body(operation))
                assert answer.is_success or answer.status_code == 409, (str(operation), answer.text)
                continue
            _refused_alike(ground, operation, client, name)


def test_a_token_of_another_scope_sees_nothing_of_a_device(controller, ground, walk) -> None:
    name = ground.device().certificate.device
    with controller.client(Role.ADMIN, tags=["elsewhere"]) as client:
        for operation in walk:
            if not may(operation) or WHOLE_FLEET.fullmatch(str(operation)) or NAMED.fullmatch(str(operation)):
                _refused_alike(ground, operation, client, name)
            else:
                answer = operation.asked(client, ground.path(operation, name), ground.body(operation))
                assert answer.is_success, (str(operation), answer.text)
                assert name not in answer.text, str(operation)


def test_a_token_of_the_scope_sees_the_device(controller, ground, walk) -> None:
    name = ground.device().certificate.device
    with controller.client(Role.ADMIN, tags=["pilot"]) as client:
        for operation in walk:
            if "{device}" in operation.path and not WHOLE_FLEET.fullmatch(str(operation)):
                answer = operation.asked(client, ground.path(operation), ground.body(operation))
                assert answer.is_success or answer.status_code == 409, (str(operation), answer.text)
        assert name in client.get("/v1/devices?limit=1000").text


def test_a_device_is_let_in_on_its_own_routes_and_no_others(controller, ground, walk) -> None:
    made = ground.device()
    with controller.device_client(made) as client:
        for operation in walk:
            path = ground.path(operation, made.certificate.device)
            body = ground.body(operation, made.certificate.device)
            if may(operation):
                with ground.untouched():
                    _refused(operation, client, path, body)
                continue
            answer = operation.asked(client, path, body)
            assert answer.is_success, (str(operation), answer.text)


def test_a_device_that_was_revoked_is_let_in_nowhere(controller, ground, walk) -> None:
    made = ground.device()
    name = made.certificate.device
    with controller.device_client(made) as client:
        assert client.get("/v1/self/assignment").is_success
        asked = [(each, ground.path(each, name), ground.body(each, name)) for each in walk]
        assert ground.admin.post(f"/v1/devices/{name}/revoke").is_success
        for operation, path, body in asked:
            answer = operation.asked(client, path, body)
            assert answer.status_code in {401, 403}, (str(operation), answer.text)


def test_a_device_sees_and_changes_itself_alone(controller, ground) -> None:
    mine, other = ground.device(), ground.device()
    own, foreign = mine.certificate.device, other.certificate.device
    number = ground.asked_for(foreign)
    with controller.device_client(mine) as client:
        assert client.get("/v1/self/assignment").json()["signed"]["device"] == own
        assert client.get("/v1/self/diagnostics").json() == {"requests": []}
        assert client.post("/v1/self/diagnostics", json={"id": number, "answer": {}}).status_code == 404
        assert client.put("/v1/self/inventory", json={"of": own}).is_success
    shown = ground.admin.get(f"/v1/devices/{foreign}/diagnostics/{number}").json()
    assert (shown["answered"], shown["answer"]) == (None, None)
    found = [ground.admin.get(f"/v1/devices/{name}/inventory").json() for name in (own, foreign)]
    assert found == [{"of": own}, {}]
