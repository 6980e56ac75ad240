"""Rights of callers over both gRPC servers and REST; and no method or route without a scope."""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import grpc
import grpc.aio
import httpx
import numpy as np
import pytest
from litestar.routes import HTTPRoute
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.access import Address, Security, read_tokens
from gateway.common.domain.rights import Grant, Scope, read_rights
from gateway.serving.frontends.grpc_v2.codec.protocol import REFLECTION, SERVICES, services
from gateway.serving.frontends.grpc_v2.service.inference import NEEDS
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.rest_v2.regions import REGION_HANDLERS
from gateway.serving.frontends.rest_v2.routes import HANDLERS, REFUSING_HANDLERS
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators import grpc_gateway, rest_gateway
from tests.simulators.rest_gateway import infer_body

pytestmark = pytest.mark.asyncio
SEEN, UNSEEN = "identity_fp32", "identity_int8"
TOKENS = read_tokens(
    "\n".join([*(f"{scope} {scope}-token scopes={scope}" for scope in Scope), f"narrow narrow-token models={SEEN}"]),
    "tokens",
)
GUARDED = Security(tokens=TOKENS)
FINE = {"OK", "NOT_FOUND", "INVALID_ARGUMENT", "200", "400", "404"}
"""Answers of the method itself, whatever it thinks of the request."""
DENIED = {"PERMISSION_DENIED", "403"}


def bearer(holder: str) -> dict[str, str]:
    return {"authorization": f"Bearer {holder}-token"}


def infer_request(model: str) -> Any:
    return service_pb2.ModelInferRequest(
        model_name=model,
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 1]}],
        raw_input_contents=[np.float32(1).tobytes()],
    )


# ---- no method, and no route, without a scope ------------------------------------------------------------------------
async def test_every_method_has_a_scope() -> None:
    methods = {method.name for service in services((*SERVICES, *REFLECTION)) for method in service.methods}
    assert methods == set(NEEDS)


async def test_every_route_has_a_scope() -> None:
    from gateway.serving.frontends.rest_v2.app import create_app

    async with rest_gateway.serving() as gateway:
        frontend, inference = gateway.frontend, gateway.inference
        settings = frontend._settings
        guarded, _ = create_app(
            inference,
            inference,
            inference,
            settings,
            frontend.authentication,
            rest_gateway.metrics,
            None,
            None,
            frontend.requests,
            frontend.request_bytes,
        )
    app = guarded._app._app  # type: ignore[attr-defined]  # behind the guard of browsers, and the door
    handlers = {
        handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.http_methods != {"OPTIONS"}
    }
    assert len(handlers) >= len(HANDLERS) + len(REGION_HANDLERS) + len(REFUSING_HANDLERS)
    assert [str(handler) for handler in handlers if "needs" not in handler.opt] == []


# ---- scopes ----------------------------------------------------------------------------------------------------------
CALLS: Mapping[str, tuple[Callable[[str], Any], tuple[str, str, Any], set[Scope]]] = {
    "metadata": (
        lambda _: ("ServerMetadata", service_pb2.ServerMetadataRequest()),
        ("GET", "/v2", None),
        {Scope.INFER, Scope.MODELS},
    ),
    "model": (
        lambda model: ("ModelMetadata", service_pb2.ModelMetadataRequest(name=model)),
        ("GET", "/v2/models/{model}", None),
        {Scope.INFER, Scope.MODELS},
    ),
    "ready": (
        lambda model: ("ModelReady", service_pb2.ModelReadyRequest(name=model)),
        ("GET", "/v2/models/{model}/ready", None),
        {Scope.INFER, Scope.MODELS},
    ),
    "config": (
        lambda model: ("ModelConfig", service_pb2.ModelConfigRequest(name=model)),
        ("GET", "/v2/models/{model}/versions/1/config", None),
        {Scope.INFER, Scope.MODELS},
    ),
    "statistics": (
        lambda model: ("ModelStatistics", service_pb2.ModelStatisticsRequest(name=model)),
        ("GET", "/v2/models/{model}/stats", None),
        {Scope.INFER, Scope.MODELS},
    ),
    "infer": (
        lambda model: ("ModelInfer", infer_request(model)),
        ("POST", "/v2/models/{model}/infer", infer_body(1)),
        {Scope.INFER},
    ),
    "load": (
        lambda model: ("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name=model)),
        ("POST", "/v2/repository/models/{model}/load", {}),
        {Scope.MODELS},
    ),
    "unload": (
        lambda model: ("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name=model)),
        ("POST", "/v2/repository/models/{model}/unload", {}),
        {Scope.MODELS},
    ),
    "memory": (
        lambda _: (
            "SystemSharedMemoryRegister",
            service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/no", byte_size=8),
        ),
        ("POST", "/v2/systemsharedmemory/region/r/register", {"key": "/no", "byte_size": 8}),
        {Scope.MEMORY},
    ),
    "index": (
        lambda _: ("RepositoryIndex", service_pb2.RepositoryIndexRequest()),
        ("POST", "/v2/repository/index", {}),
        {Scope.INFER, Scope.MODELS},
    ),
}
MODELS = ("model", "ready", "config", "statistics", "infer", "load", "unload")


async def asked_grpc(channel: grpc.aio.Channel, name: str, message: Any, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return status and words of one call."""
    try:
        await getattr(service_pb2_grpc.GRPCInferenceServiceStub(channel), name)(
            message, metadata=tuple(headers.items())
        )
    except grpc.aio.AioRpcError as error:
        return error.code().name, str(error.details())
    return "OK", ""


@pytest.mark.parametrize("holder", [*Scope])
async def test_scopes_over_grpc(holder: Scope) -> None:
    async with (
        grpc_gateway.serving(
            security=GUARDED, regions=Regions(SharedMemorySettings(allowed=True, over_tcp=True))
        ) as gateway,
        grpc.aio.insecure_channel(gateway.target) as channel,
    ):
        for ask, _, scopes in CALLS.values():
            status, words = await asked_grpc(channel, *ask(SEEN), bearer(holder))
            check(status, words, holder, scopes)
        status, words = await asked_grpc(channel, "ServerLive", service_pb2.ServerLiveRequest(), bearer(holder))
        assert status == "OK"


@pytest.mark.parametrize("holder", [*Scope])
async def test_scopes_over_rest(holder: Scope) -> None:
    regions = Regions(SharedMemorySettings(allowed=True, over_tcp=True))
    async with rest_gateway.serving(security=GUARDED, regions=regions) as gateway:
        metrics: tuple[Any, tuple[str, str, Any], set[Scope]] = (None, ("GET", "/metrics", None), {Scope.METRICS})
        for _, (method, path, body), scopes in [*CALLS.values(), metrics]:
            answer = await gateway.client.request(method, path.format(model=SEEN), json=body, headers=bearer(holder))
            check(str(answer.status_code), answer.text, holder, scopes)
        assert (await gateway.client.get("/schema/openapi.json", headers=bearer(holder))).status_code == 200


def check(status: str, words: str, holder: Scope, scopes: set[Scope]) -> None:
    if holder in {*scopes, Scope.ADMIN}:
        assert status in FINE, words
        return
    assert status in DENIED, words
    assert f"caller '{holder}' lacks the scope" in words
    assert all(scope in words for scope in scopes)


# ---- models ----------------------------------------------------------------------------------------------------------
async def test_models_over_grpc() -> None:
    async with (
        grpc_gateway.serving(security=GUARDED) as gateway,
        grpc.aio.insecure_channel(gateway.target) as channel,
    ):
        stub, metadata = service_pb2_grpc.GRPCInferenceServiceStub(channel), tuple(bearer("narrow").items())
        index = await stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), metadata=metadata)
        assert {model.name for model in index.models} == {SEEN}
        counted = await stub.ModelStatistics(service_pb2.ModelStatisticsRequest(), metadata=metadata)
        assert {each.name for each in counted.model_stats} <= {SEEN}
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"", metadata=metadata)
        for model, code in ((SEEN, None), (UNSEEN, grpc.StatusCode.PERMISSION_DENIED)):
            assert await outcome(health(b"\x0a" + bytes([len(model)]) + model.encode(), metadata=metadata)) is code

        for name in MODELS:
            for model in (UNSEEN, "no-such-model"):
                status, words = await asked_grpc(channel, *CALLS[name][0](model), bearer("narrow"))
                assert (status, f"'narrow' may not use model '{model}'" in words) == ("PERMISSION_DENIED", True), name
            assert (await asked_grpc(channel, *CALLS[name][0](SEEN), bearer("narrow")))[0] == "OK"
        assert {request.model for request in gateway.inference.requests} == {SEEN}


async def test_a_stream_may_name_another_model_in_each_message() -> None:
    async with (
        grpc_gateway.serving(security=GUARDED) as gateway,
        grpc.aio.insecure_channel(gateway.target) as channel,
    ):
        stream = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            metadata=tuple(bearer("narrow").items())
        )
        for model, words in ((SEEN, ""), (UNSEEN, f"may not use model '{UNSEEN}'"), (SEEN, "")):
            await stream.write(infer_request(model))
            assert words in (said := (await stream.read()).error_message)
            assert bool(said) is bool(words)
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK
        assert [request.model for request in gateway.inference.requests] == [SEEN, SEEN]


async def test_models_over_rest() -> None:
    async with rest_gateway.serving(security=GUARDED) as gateway:
        index = await gateway.client.post("/v2/repository/index", headers=bearer("narrow"))
        assert {line["name"] for line in index.json()} == {SEEN}
        counted = await gateway.client.get("/v2/models/stats", headers=bearer("narrow"))
        assert {line["name"] for line in counted.json()["model_stats"]} <= {SEEN}
        for name in MODELS:
            method, path, body = CALLS[name][1]
            for model, status in ((UNSEEN, 403), ("no-such-model", 403), (SEEN, 200)):
                answer = await gateway.client.request(
                    method, path.format(model=model), json=body, headers=bearer("narrow")
                )
                assert answer.status_code == status, (name, model)
                assert status == 200 or f"'narrow' may not use model '{model}'" in answer.json()["error"]


async def test_a_model_is_refused_before_its_body_is_read() -> None:
    async with rest_gateway.serving(security=GUARDED) as gateway:
        reader, writer = await gateway.connect()
        head = f"POST /v2/models/{UNSEEN}/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
        writer.write(f"{head}Authorization: Bearer narrow-token\r\n\r\n".encode())
        assert b" 403 " in await reader.readline()
        await rest_gateway.hangs_up(writer)


# ---- callers without a token -----------------------------------------------------------------------------------------
async def test_anonymous_metrics_beside_tokens() -> None:
    security = Security(tokens=TOKENS, grants=(Grant("loopback", read_rights(["models"], ())),))
    async with (
        grpc_gateway.serving(security=security) as gateway,
        grpc.aio.insecure_channel(gateway.target) as channel,
    ):
        assert (await asked_grpc(channel, *CALLS["load"][0](SEEN), {}))[0] == "OK"
        assert (await asked_grpc(channel, *CALLS["infer"][0](SEEN), {}))[0] == "PERMISSION_DENIED"
        assert (await asked_grpc(channel, *CALLS["infer"][0](SEEN), bearer("infer")))[0] == "OK"
        wrong = {"authorization": "Bearer wrong"}
        assert (await asked_grpc(channel, *CALLS["load"][0](SEEN), wrong))[0] == "UNAUTHENTICATED"


async def test_users_of_a_socket(tmp_path: Any) -> None:
    address = Address(path=str(tmp_path / "grpc.sock"))
    security = Security(grants=(Grant("uid:*", read_rights(["infer"], [SEEN])),))
    async with (
        grpc_gateway.serving(addresses=[address], security=security) as gateway,
        grpc.aio.insecure_channel(gateway.target) as channel,
    ):
        assert (await asked_grpc(channel, *CALLS["infer"][0](SEEN), {}))[0] == "OK"
        assert (await asked_grpc(channel, *CALLS["infer"][0](UNSEEN), {}))[0] == "PERMISSION_DENIED"
        assert (await asked_grpc(channel, *CALLS["load"][0](SEEN), {}))[0] == "PERMISSION_DENIED"


async def test_groups_of_a_user_behind_a_socket(tmp_path: Any) -> None:
    """Groups are those of the peer's process; the first grant that covers one of its names counts."""
    address = Address(path=str(tmp_path / "http.sock"))
    infer, nothing_of_it = read_rights(["infer"], ()), read_rights(["metrics"], ())
    groups = [Grant(f"gid:{gid}", infer) for gid in {os.getgid(), *os.getgroups()}]
    for grants, status in ((groups[-1:], 200), ([Grant(f"uid:{os.getuid()}", nothing_of_it), *groups], 403)):
        async with rest_gateway.serving(addresses=[address], security=Security(grants=tuple(grants)), hosts=()):
            transport = httpx.AsyncHTTPTransport(uds=address.path)
            async with httpx.AsyncClient(transport=transport, base_url="http://any.name.example") as client:
                assert (await client.get("/v2")).status_code == status


# ---- failures --------------------------------------------------------------------------------------------------------
async def test_failures_are_counted_and_slowed_over_grpc() -> None:
    async with (
        grpc_gateway.serving(security=GUARDED) as gateway,
        grpc.aio.insecure_channel(gateway.target) as channel,
    ):
        wrong = {"authorization": "Bearer hidden"}
        said = [await asked_grpc(channel, *CALLS["infer"][0](SEEN), wrong) for _ in range(12)]
        assert [status for status, _ in said[:10]] == ["UNAUTHENTICATED"] * 10
        assert said[-1][0] == "RESOURCE_EXHAUSTED"
        assert "too many failed authentications from 127.0.0.1" in said[-1][1]
        assert (await asked_grpc(channel, *CALLS["infer"][0](SEEN), bearer("infer")))[0] == "OK"
        assert counted(gateway)["unknown"] == 12


async def test_failures_are_counted_and_slowed_over_rest() -> None:
    async with rest_gateway.serving(security=GUARDED) as gateway:
        answers = [await gateway.client.get("/v2") for _ in range(12)]
        assert [answer.status_code for answer in answers[:10]] == [401] * 10
        assert answers[-1].status_code == 429
        assert int(answers[-1].headers["retry-after"]) >= 1
        assert (await gateway.client.get("/v2", headers=bearer("infer"))).status_code == 200
        assert (await gateway.client.get("/v2/health/live")).status_code == 200
        assert counted(gateway)["missing"] == 12


def counted(gateway: Any) -> dict[str, float]:
    return {sample.labels["reason"]: sample.value for sample in gateway.frontend.authentication.samples()}


async def outcome(call: Awaitable[object]) -> grpc.StatusCode | None:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


# ---- pages in a browser ----------------------------------------------------------------------------------------------
PANEL = "https://panel.example.org"


async def test_pages_of_other_origins_are_refused() -> None:
    async with rest_gateway.serving(hosts=()) as gateway:
        own = f"http://{gateway.target}"
        for path in ("/v2", "/v2/health/live", "/metrics", "/nothing"):
            for origin in (
                PANEL,
                "null",
                "http://localhost",
                "http://127.0.0.1",
                own + "/",
                own.replace("http", "https"),
            ):
                answer = await gateway.client.get(path, headers={"origin": origin})
                assert answer.status_code == 403, (path, origin)
                assert "[http] cors_origins" in answer.json()["error"]
                assert "access-control-allow-origin" not in answer.headers
            assert (await gateway.client.get(path, headers={"origin": own})).status_code in {200, 404}
        asked = {"origin": PANEL, "access-control-request-method": "POST"}
        assert (await gateway.client.options("/v2/models/x/infer", headers=asked)).status_code == 403
        load = f"/v2/repository/models/{SEEN}/load"
        form = {"origin": PANEL, "content-type": "text/plain"}
        assert (await gateway.client.post(load, content=b"{}", headers=form)).status_code == 403
        assert gateway.inference.loaded == []
        assert counted(gateway)["origin"] == 4 * 6 + 2


async def test_a_listed_origin_may_ask() -> None:
    from gateway.serving.frontends.rest_v2.settings import RestSettings

    settings = RestSettings(cors_origins=(PANEL,))
    async with rest_gateway.serving(settings=settings, security=GUARDED) as gateway:
        preflight = {
            "origin": PANEL,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization",
        }
        allowed = await gateway.client.options(f"/v2/models/{SEEN}/infer", headers=preflight)
        assert allowed.status_code == 204
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        asked = await gateway.client.post(
            f"/v2/models/{SEEN}/infer", json=infer_body(1), headers={"origin": PANEL, **bearer("infer")}
        )
        refused = await gateway.client.get("/v2", headers={"origin": PANEL})
        assert (asked.status_code, refused.status_code) == (200, 401)
        for answer in (allowed, asked, refused):
            assert answer.headers["access-control-allow-origin"] == PANEL
            assert "origin" in answer.headers.get_list("vary")
            assert "access-control-allow-credentials" not in answer.headers
        quiet = await gateway.client.get("/v2", headers=bearer("infer"))
        assert "access-control-allow-origin" not in quiet.headers
        assert "origin" in quiet.headers.get_list("vary")
        other = await gateway.client.get("/v2", headers={"origin": PANEL + ".evil.example", **bearer("infer")})
        assert other.status_code == 403


async def test_a_name_that_was_rebound_to_this_device() -> None:
    async with rest_gateway.serving(hosts=()) as gateway:
        port = gateway.addresses[0].port
        for path in ("/v2", f"/v2/repository/models/{SEEN}/unload", "/metrics"):
            for host in (f"evil.example:{port}", "evil.example", "localhost.evil.example"):
                method = "POST" if path.endswith("unload") else "GET"
                answer = await gateway.client.request(method, path, headers={"host": host, "origin": f"http://{host}"})
                assert answer.status_code == 403
                assert "[http] hosts" in answer.json()["error"]
        for host in ("localhost", f"localhost:{port}", "127.0.0.1", "[::1]:1"):
            assert (await gateway.client.get("/v2", headers={"host": host})).status_code == 200
        for path in ("/v2/health/live", "/v2/health/ready"):  # supervisors may use any name
            assert (await gateway.client.get(path, headers={"host": "pod.example"})).status_code == 200
        assert counted(gateway) == {"host": 9}


async def test_a_token_may_ask_by_any_name() -> None:
    """No page has it unless its caller gave it away."""
    async with rest_gateway.serving(hosts=(), security=GUARDED) as gateway:
        named = {"host": "camera-7.lan"}
        assert (await gateway.client.get("/v2", headers={**named, **bearer("infer")})).status_code == 200
        assert (await gateway.client.get("/v2", headers=named)).status_code == 401


async def test_a_configured_name(tmp_path: Any) -> None:
    async with rest_gateway.serving(hosts=("camera-7.lan",)) as gateway:
        assert (await gateway.client.get("/v2", headers={"host": "camera-7.lan:8000"})).status_code == 200


async def test_the_openapi_document_tells_no_secrets() -> None:
    async with rest_gateway.serving(security=GUARDED) as gateway:
        document = await gateway.client.get("/schema/openapi.json", headers=bearer("metrics"))
        assert "needs" not in json.dumps(document.json())
