"""The OpenAPI document bounds all that a request carries, by the constants that the controller itself goes by."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fleet.controller.api.conditions import HEADER_CHARACTERS
from fleet.controller.api.idempotency import KEY_CHARACTERS
from fleet.controller.control.tokens import NAME_CHARACTERS as TOKEN_CHARACTERS
from fleet.controller.database.devices import TAGS_LIMIT
from fleet.controller.rollouts import spec_form
from fleet.problem_types import TYPES
from gateway.common.domain.policy import BLACKOUTS_LIMIT
from tests.simulators.controller import controlling

Schema = dict[str, Any]
LEFT_OPEN = {
    "put /v1/self/inventory": "what a device finds is its own form; IntakeSettings.inventory_limit_bytes bounds it",
    "put /v1/drafts/{role}": "a draft is a form of its own; document_limit_bytes bounds it",
    "patch /v1/blobs/{digest}": "bytes of a file; `DraftSettings` and release_file_limit_bytes bound them",
    "post /v1/self/telemetry": "lines of JSON; IntakeSettings.telemetry_limit_bytes, lines_limit and others bound them",
    "post /v1/self/diagnostics.answer": "a device's own form; IntakeSettings.answer_limit_bytes bounds it",
}
"""Bodies whose bounds are settings, in bytes, and stand in no schema."""
SIZES = {
    "string": ({"maxLength", "enum", "const"},),
    "integer": ({"minimum", "enum"}, {"maximum", "enum"}),
    "number": ({"minimum", "exclusiveMinimum"}, {"maximum", "exclusiveMaximum"}),
    "array": ({"maxItems"},),
    "object": ({"properties"},),
}
"""Keywords, of each set one, by type."""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    with controlling(tmp_path_factory.mktemp("controller")) as running, running.client(None) as nobody:
        found: Schema = nobody.get("/schema/openapi.json").json()
        return found


def _requests(document: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield all schemas of parameters, headers and bodies, with where they stand."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            for parameter in operation.get("parameters", ()):
                yield f"{method} {path} {parameter['name']}", parameter["schema"]
            for content in operation.get("requestBody", {}).get("content", {}).values():
                yield f"{method} {path}", content["schema"]


def _parts(where: str, schema: Schema, document: Schema) -> Iterator[tuple[str, Schema]]:
    """Yield a schema and all that stands in it, with references followed."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    yield where, schema
    for kind in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        if "type" in kind or "$ref" in kind:
            yield from _parts(where, kind, document)
    for name, part in schema.get("properties", {}).items():
        yield from _parts(f"{where}.{name}", part, document)
    if "items" in schema:
        yield from _parts(f"{where}[]", schema["items"], document)


def _unbounded(schema: Schema) -> bool:
    wanted = SIZES.get(schema.get("type", ""), ())
    return any(not any_of & schema.keys() for any_of in wanted)


def test_all_that_a_request_carries_is_bounded(document) -> None:
    found = [part for where, schema in _requests(document) for part in _parts(where, schema, document)]
    assert len(found) > 200
    assert {where for where, schema in found if _unbounded(schema)} == set(LEFT_OPEN)


def test_an_object_of_a_request_says_whether_it_may_hold_more(document) -> None:
    """Other members would be refused, except in bodies that devices send in their own form."""
    found = [part for where, schema in _requests(document) for part in _parts(where, schema, document)]
    objects = [(where, schema) for where, schema in found if schema.get("type") == "object"]
    open_ones = {
        where.partition(".")[0] for where, schema in objects if schema.get("additionalProperties") is not False
    }
    assert open_ones == {"put /v1/self/inventory", "post /v1/self/diagnostics", "put /v1/drafts/{role}"}


def _body(document: Schema, name: str, field: str) -> Schema:
    found: Schema = document["components"]["schemas"][name]["properties"][field]
    return found


def test_bounds_are_those_that_the_controller_goes_by(document) -> None:
    assert _body(document, "SpecForm", "waves")["maxItems"] == spec_form.WAVES_LIMIT
    assert _body(document, "SpecForm", "blackouts")["maxItems"] == BLACKOUTS_LIMIT
    assert _body(document, "SpecForm", "silence_s")["maximum"] == spec_form.SILENCE_LIMIT_S
    assert _body(document, "AbortForm", "confidence")["minimum"] == spec_form.CONFIDENCE_LOW
    assert _body(document, "Labels", "tags")["maxItems"] == TAGS_LIMIT
    assert _body(document, "TokenWanted", "name")["maxLength"] == TOKEN_CHARACTERS
    headers = {
        one["name"]: one["schema"] for one in document["paths"]["/v1/devices/{device}/revoke"]["post"]["parameters"]
    }
    assert headers["Idempotency-Key"]["maxLength"] == KEY_CHARACTERS + 2
    assert headers["If-Match"]["anyOf"][1]["maxLength"] == HEADER_CHARACTERS


def test_the_type_of_a_problem_is_one_of_the_table(document) -> None:
    assert document["components"]["schemas"]["ProblemDocument"]["properties"]["type"]["enum"] == [
        one.uri for one in TYPES
    ]


@pytest.mark.parametrize(
    ("route", "statuses"),
    [
        ("get /v1/devices/{device}", {"304"}),
        ("post /v1/tokens", {"422"}),
        ("post /v1/rollouts/{rollout}/start", {"412", "422", "428"}),
        ("put /v1/devices/{device}/labels", {"412", "428"}),
        ("post /v1/enrol", set()),
    ],
)
def test_routes_name_the_answers_that_only_some_give(document, route, statuses) -> None:
    method, _, path = route.partition(" ")
    answers = document["paths"][path][method]["responses"].keys()
    assert answers & {"304", "412", "422", "428"} == statuses


def test_a_value_that_is_null_is_none(tmp_path) -> None:
    with controlling(tmp_path) as running, running.client() as admin:
        assert admin.get("/v1/devices?state=null").status_code == 400
        assert admin.get("/v1/devices?site=null&tag=null").json()["items"] == []  # texts
        assert admin.get("/v1/devices?state=enrolled").status_code == 200


def test_a_device_without_an_id_is_called_by_its_serial(tmp_path) -> None:
    with controlling(tmp_path) as running, running.client() as admin:
        assert admin.post("/v1/devices", json={"id": "", "serial": "s-1"}).json()["id"] == "s-1"
        refused = admin.post("/v1/devices", json={"id": "", "serial": "no name!"})
        assert (refused.status_code, "send an id with the serial" in refused.json()["detail"]) == (400, True)
        assert admin.post("/v1/devices", json={"id": "d-1", "serial": "no name!"}).status_code == 201
