"""The control API's routes: documents, commands, and what is refused."""

import json

import pytest

from gateway import __version__
from gateway.common.domain.activation import read_activation
from gateway.common.domain.errors import Fault, RequestError, VariantError
from gateway.common.domain.statistics import LATENCY_BOUNDS_NS
from tests.simulators.control_gateway import ACTIVATION, SETTINGS, serving

pytestmark = pytest.mark.asyncio
LOAD = "/v1/models/meter/load"
ROUTE = "/v1/models/meter/route"
UNLOAD = "/v1/models/meter/unload"
REPLAY = "/v1/models/meter/replay"
MODEL_COMMANDS = [
    ("PUT", ROUTE, {"weights": {"1": 95, "2": 5}, "shadow": "1", "lease_s": 30}),
    ("POST", UNLOAD, {"version": "1", "drain_s": 2.5}),
    ("POST", "/v1/commit", {}),
]
"""Commands for models that are answered with {}."""
SETTINGS_COMMANDS = [
    ("POST", "/v1/settings/trial", {"activation": SETTINGS, "within_s": 30.0}),
    ("POST", "/v1/settings/confirm", {"sha256": "a" * 64}),
    ("POST", "/v1/settings/revert", {"sha256": "a" * 64, "reason": "too slow"}),
]
COMMANDS = [
    ("POST", "/v1/plan", ACTIVATION),
    ("POST", LOAD, ACTIVATION),
    ("POST", REPLAY, {"version": "1"}),
    *MODEL_COMMANDS,
    *SETTINGS_COMMANDS,
]


def problem(response):
    """Return the problem document, after a check of its form (RFC 9457)."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert set(document) == {"type", "title", "status", "detail", "fault"}
    assert (document["type"], document["status"]) == ("about:blank", response.status_code)
    return document


async def test_status_says_which_process_and_what_serves():
    async with serving(restart=lambda: "a device profile changed") as gateway:
        told = (await gateway.client.get("/v1/status")).json()
        again = (await gateway.client.get("/v1/status")).json()
    assert told["instance"] == again["instance"]
    assert len(told["instance"]) == 16
    assert told["rss_bytes"] > 1 << 20
    assert (told["version"], told["profile"], told["restart"]) == (
        __version__,
        "generic-x86",
        "a device profile changed",
    )
    hand, meter = told["models"]
    assert (hand["state"], hand["reason"], hand["signed"], hand["variant"]) == ("UNAVAILABLE", "broken", False, "")
    assert meter == {
        "model": "meter",
        "version": "2",
        "variant": "onnx-int8",
        "accelerator": "cpu",
        "state": "READY",
        "signed": True,
        "weight": 100,
        "reason": "",
    }


async def test_another_process_is_another_instance():
    async with serving() as one, serving() as other:
        told = [(await gateway.client.get("/v1/status")).json()["instance"] for gateway in (one, other)]
    assert told[0] != told[1]


async def test_inventory_and_vitals():
    async with serving() as gateway:
        assert (await gateway.client.get("/v1/inventory")).json() == {"arch": "x86_64", "profile": "generic-x86"}
        assert (await gateway.client.get("/v1/vitals")).json() == {
            "temperatures_c": {"cpu": 41.5},
            "power_watts": {"board": 3.5},
            "throttled": False,
            "memory_available_bytes": 1024,
        }


@pytest.mark.parametrize("query", ["", "?model=meter"])
async def test_statistics(query):
    async with serving() as gateway:
        (counted,) = (await gateway.client.get(f"/v1/statistics{query}")).json()["models"]
    assert (counted["model"], counted["version"], counted["signed"], counted["weight"]) == ("meter", "2", True, 100)
    assert (counted["requests"], counted["executions"], counted["failed_runs"]) == (7, 5, 1)
    assert (counted["compared"], counted["disagreed"]) == (3, 1)
    assert counted["latency_bounds_ns"] == list(LATENCY_BOUNDS_NS)
    assert len(counted["latency_counts"]) == len(LATENCY_BOUNDS_NS) + 1


async def test_a_model_that_nobody_knows_has_no_statistics():
    async with serving() as gateway:
        answer = await gateway.client.get("/v1/statistics?model=nobody")
    assert (answer.status_code, answer.json()) == (200, {"models": []})


async def test_plan_and_load():
    async with serving() as gateway:
        planned = (await gateway.client.post("/v1/plan", json={**ACTIVATION, "variants": []})).json()
        loaded = (await gateway.client.post(LOAD, json=ACTIVATION)).json()
    assert planned["profile"] == "generic-x86"
    assert [line["eligible"] for line in planned["candidates"]] == [True, False]
    assert planned["candidates"][1] == {
        "variant": "onnx-fp32",
        "accelerator": None,
        "rank": None,
        "fits": False,
        "eligible": False,
        "reason": "no step",
    }
    assert loaded["measured"] == {"p50_us": 100.0, "p99_us": 200.0, "cpu_us": 90.0, "memory_bytes": 4096}
    assert (loaded["variant"], loaded["accelerator"], loaded["reason"]) == ("onnx-int8", "cpu", "the only one")
    assert gateway.engine.told == [
        ("plan", read_activation({**ACTIVATION, "variants": []})),
        ("load", read_activation(ACTIVATION)),
    ]


async def test_replay():
    async with serving() as gateway:
        answer = await gateway.client.post(REPLAY, json={"version": "1"})
        assert answer.json() == {"rows": 8, "passed": True, "reason": "it answers its golden set"}
    assert gateway.engine.told == [("replay", "meter", "1")]


async def test_route_unload_and_commit():
    async with serving() as gateway:
        for method, path, body in MODEL_COMMANDS:
            answer = await gateway.client.request(method, path, json=body)
            assert (answer.status_code, answer.json()) == (200, {})
        assert (await gateway.client.post("/v1/commit")).status_code == 200
    route, unload, *commits = gateway.engine.told
    assert route == ("route", "meter", {"1": 95, "2": 5}, "1", 30)
    assert unload == ("unload", "meter", "1", 2.5)
    assert commits == [("commit",), ("commit",)]


async def test_settings_of_the_fleet():
    async with serving() as gateway:
        told = (await gateway.client.get("/v1/settings")).json()
        answers = [await gateway.client.request(method, path, json=body) for method, path, body in SETTINGS_COMMANDS]
    assert (told["target"], told["trial_ends_in_s"]) == ("settings/berlin/2/release", 12.5)
    assert told["committed"] == "settings/berlin/1/release"
    assert [(answer.status_code, answer.json()) for answer in answers] == [(202, {}), (200, {}), (200, {})]
    assert gateway.engine.told == [
        ("try", read_activation(SETTINGS), 30.0),
        ("confirm", "a" * 64),
        ("revert", "a" * 64, "too slow"),
    ]


@pytest.mark.parametrize(("method", "path", "body"), COMMANDS)
@pytest.mark.parametrize(
    ("error", "status", "fault"),
    [
        (VariantError("the golden set fails"), 409, "INVALID"),
        (VariantError("no memory now", transient=True), 503, "UNAVAILABLE"),
        (RequestError(Fault.INVALID, "the shares are 99 percent"), 400, "INVALID"),
        (RequestError(Fault.NOT_FOUND, "version 7 is not loaded"), 404, "NOT_FOUND"),
        (RequestError(Fault.DENIED, "it is committed"), 403, "DENIED"),
        (RuntimeError("a defect"), 500, "INTERNAL"),
    ],
)
async def test_what_the_engine_refuses(method, path, body, error, status, fault):  # noqa: PLR0917  parameters of the table
    async with serving() as gateway:
        gateway.engine.error = error
        refused = await gateway.client.request(method, path, json=body)
        assert refused.status_code == status
        told = problem(refused)
    assert told["fault"] == fault
    assert str(error) in told["detail"] or fault == "INTERNAL"
    assert "a defect" not in told["detail"]
    assert ("retry-after" in refused.headers) == (status == 503)


@pytest.mark.parametrize(("method", "path", "body"), COMMANDS)
@pytest.mark.parametrize("wrong", [b"{", b"[]", b"null", b'"x"', b'{"nobody": 1}', b"\xff", b"[" * 30_000])
async def test_a_wrong_body_never_reaches_the_engine(method, path, body, wrong):
    del body
    async with serving() as gateway:
        refused = await gateway.client.request(method, path, content=wrong)
        assert refused.status_code == 400
        assert "the request body" in problem(refused)["detail"]
    assert gateway.engine.told == []


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        (LOAD, {**ACTIVATION, "slot": "other"}, "name one"),
        (LOAD, {**ACTIVATION, "root": 0}, "root must be a version"),
        (LOAD, {**ACTIVATION, "root": "1"}, "`$.root`"),
        (LOAD, {**ACTIVATION, "root": True}, "`$.root`"),
        (LOAD, {**ACTIVATION, "target": "models/acme"}, "is no release's path"),
        (LOAD, {**ACTIVATION, "slot": "@settings"}, "cannot hold"),
        ("/v1/settings/trial", {"activation": {**SETTINGS, "slot": "meter"}, "within_s": 3}, "cannot hold"),
        ("/v1/settings/trial", {"activation": SETTINGS, "within_s": "3"}, "`$.within_s`"),
        (LOAD, {**ACTIVATION, "variants": "onnx"}, "`$.variants`"),
        (LOAD, {key: value for key, value in ACTIVATION.items() if key != "evidence"}, "`evidence`"),
        (ROUTE, {"weights": {"1": 99.5}, "lease_s": 3}, "`$.weights[...]`"),
        (ROUTE, {"weights": [1]}, "`$.weights`"),
        (ROUTE, {"weights": {"1": 100}}, "`lease_s`"),
        (ROUTE, {"weights": {"1": 100}, "lease_s": "30"}, "`$.lease_s`"),
        (UNLOAD, {"version": "1", "drain_s": 601}, "drain_s must be 0 to 600 seconds"),
        (UNLOAD, {"version": 1, "drain_s": 1}, "`$.version`"),
    ],
)
async def test_a_value_that_is_none(path, body, says):
    async with serving() as gateway:
        refused = await gateway.client.request("PUT" if path == ROUTE else "POST", path, content=json.dumps(body))
        assert refused.status_code == 400
        assert says in problem(refused)["detail"]
    assert gateway.engine.told == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/health/live", 404),
        ("GET", "/schema/nothing", 404),
        ("GET", "/v1/models/meter/load", 405),
        ("POST", "/v1/status", 405),
        ("DELETE", ROUTE, 405),
        ("POST", "/v1/models/a/b/load", 404),
        ("POST", "/v1/models//load", 404),
    ],
)
async def test_what_is_not_there(method, path, status):
    async with serving() as gateway:
        refused = await gateway.client.request(method, path)
        assert refused.status_code == status
        problem(refused)


async def test_the_document_of_the_api():
    async with serving() as gateway:
        document = (await gateway.client.get("/schema/openapi.json")).json()
    paths = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert paths == {(method, path.replace("/meter/", "/{slot}/")) for method, path, _ in COMMANDS} | {
        ("GET", f"/v1/{name}") for name in ("status", "inventory", "vitals", "cameras", "statistics", "settings")
    }
    body = document["paths"]["/v1/models/{slot}/load"]["post"]["requestBody"]
    schema = body["content"]["application/json"]["schema"]
    assert set(schema["required"]) == set(ACTIVATION)
    assert schema["properties"]["evidence"] == {"type": "array", "items": {"type": "string"}}
    route = document["paths"]["/v1/models/{slot}/route"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    (query,) = document["paths"]["/v1/statistics"]["get"]["parameters"]
    assert (query["name"], query["in"]) == ("model", "query")
    assert route["properties"]["weights"] == {"type": "object", "additionalProperties": {"type": "integer"}}
