"""Answers in parts over gRPC and HTTP, by the real engine: parts, their end, errors, and callers that leave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import pytest_asyncio
import tritonclient.grpc.aio as triton

from gateway.common.domain.access import Security
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.server import GrpcServer
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.rest_v2.server import RestFrontend
from gateway.serving.frontends.rest_v2.settings import RestSettings
from tests.simulators.grpc_gateway import LOOPBACK, UNDIVIDED
from tests.simulators.rest_gateway import metrics
from tests.simulators.writer import WriterSession, words
from tests.simulators.writing import sessions, until, writing

pytestmark = pytest.mark.asyncio
FINAL = "triton_final_response"
GENERATE, STREAM = "/v2/models/writer/generate", "/v2/models/writer/generate_stream"
ENDLESS = 10**9


class Served:
    """The model `writer`, its session, and where it answers."""

    def __init__(self, rig: Any, grpc_target: str, http: httpx.AsyncClient, http_address: Any) -> None:
        self.rig, self.grpc, self.http, self.http_address = rig, grpc_target, http, http_address

    @property
    def session(self) -> WriterSession:
        return sessions(self.rig)[0]

    async def is_free(self) -> None:
        """Wait until no run is under way."""
        await until(lambda: not self.rig.engine.statistics("writer")[0].busy)


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    rig = await writing()
    sessions(rig)[0].gate.set()
    service = InferenceService(rig.engine, rig.repository, rig.engine, GrpcSettings(), None, pools=Pools(UNDIVIDED))
    rpc = GrpcServer(service, GrpcSettings(), Security())
    rest = RestFrontend(
        rig.engine, rig.repository, rig.engine, RestSettings(hosts=("*",)), Security(), metrics, None,
        cameras=None, pools=Pools(UNDIVIDED),
    )  # fmt: skip
    (target,), (address,) = await rpc.start((LOOPBACK,)), await rest.start((LOOPBACK,))
    await rest.answer()
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=60, trust_env=False) as client:
        yield Served(rig, str(target), client, address)
    await rpc.stop(0)
    await rest.stop(0)
    sessions(rig)[0].gate.set()
    await rig.repository.close()


def inputs(prompt: str = "w", *, stream: bool | None = True, **parameters: Any) -> list[triton.InferInput]:
    given = [("text_input", prompt), ("sampling_parameters", json.dumps(parameters))]
    tensors = [triton.InferInput(name, [1], "BYTES") for name, _ in given]
    for tensor, (_, content) in zip(tensors, given, strict=True):
        tensor.set_data_from_numpy(np.array([content.encode()], object))
    if stream is not None:
        tensors.append(triton.InferInput("stream", [1], "BOOL"))
        tensors[-1].set_data_from_numpy(np.array([stream]))
    return tensors


async def asks(*requests: tuple[str, list[triton.InferInput]], hold: asyncio.Event | None = None) -> AsyncIterator[Any]:
    for request_id, tensors in requests:
        yield {"model_name": "writer", "inputs": tensors, "request_id": request_id}
    if hold is not None:
        await hold.wait()


def text_of(result: Any) -> str:
    return str(result.as_numpy("text_output")[0].decode())


def is_final(result: Any) -> bool:
    return bool(result.get_response().parameters[FINAL].bool_param)


# ---- gRPC ------------------------------------------------------------------------------------------------------------
async def test_a_stream_has_several_responses_with_one_id(served: Served) -> None:
    found: dict[str, list[tuple[str, bool]]] = {"a": [], "b": []}
    async with triton.InferenceServerClient(served.grpc) as client:
        asked = asks(("a", inputs("a", max_tokens=3)), ("b", inputs("b", max_tokens=2, stream=True)))
        async for result, error in client.stream_infer(asked):
            assert error is None
            found[result.get_response().id].append((text_of(result), is_final(result)))
            if is_final(result):
                assert result.as_numpy("finish_reason")[0] == b"length"
    assert found["a"] == [("a0 ", False), ("a1 ", False), ("a2 ", False), ("", True)]
    assert found["b"] == [("b0 ", False), ("b1 ", False), ("", True)]


async def test_parts_come_while_the_model_writes(served: Served) -> None:
    served.session.gate.clear()
    hold = asyncio.Event()
    async with triton.InferenceServerClient(served.grpc) as client:
        results = client.stream_infer(asks(("a", inputs(max_tokens=2)), hold=hold))
        served.session.gate.let(1)
        result, _ = await anext(results)
        assert (text_of(result), served.session.steps) == ("w0 ", 1)
        served.session.gate.let(1)
        result, _ = await anext(results)
        assert text_of(result) == "w1 "
        hold.set()
        assert is_final((await anext(results))[0])


@pytest.mark.parametrize("stream", [False, None])
async def test_a_request_without_stream_has_one_whole_response(served: Served, stream: bool | None) -> None:
    async with triton.InferenceServerClient(served.grpc) as client:
        found = [each async for each in client.stream_infer(asks(("a", inputs(max_tokens=2, stream=stream))))]
        assert [(text_of(result), is_final(result)) for result, _ in found] == [(words(2), True)]
        assert text_of(await client.infer("writer", inputs(max_tokens=2))) == words(2)
        config = await client.get_model_config("writer", as_json=True)
        assert config["config"]["model_transaction_policy"] == {"decoupled": True}


async def test_an_error_in_the_midst_is_the_last_response(served: Served) -> None:
    async with triton.InferenceServerClient(served.grpc) as client:
        asked = asks(("a", inputs(max_tokens=3, fail_after=1)), ("b", inputs(max_tokens=1)))
        found = [(result, error) async for result, error in client.stream_infer(asked)]
    texts = [text_of(result) for result, error in found if error is None]
    assert texts == ["w0 ", "w0 ", ""]
    assert [error.message() for _, error in found if error is not None] != []


async def test_a_stream_that_is_cancelled_ends_the_run(served: Served) -> None:
    async with triton.InferenceServerClient(served.grpc) as client:
        hold = asyncio.Event()
        results = client.stream_infer(asks(("a", inputs(max_tokens=ENDLESS, pause_s=0.001)), hold=hold))
        await anext(results)
        results.cancel()
    await served.is_free()
    assert served.rig.engine.statistics("writer")[0].drops == {"cancelled": 1}


async def test_a_caller_that_does_not_read_is_cut_off(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        request = triton.service_pb2.ModelInferRequest(model_name="writer")
        for tensor in inputs(max_tokens=ENDLESS, part_bytes=60_000):
            request.inputs.append(tensor._get_tensor())
            request.raw_input_contents.append(tensor._get_content())
        await stream.write(request.SerializeToString())
        await until(lambda: served.session.steps > 0)
        await served.is_free()  # although nothing is read
        stream.cancel()
    assert served.rig.engine.statistics("writer")[0].drops == {"cancelled": 1}


# ---- HTTP ------------------------------------------------------------------------------------------------------------
def events(content: str) -> list[dict[str, Any]]:
    assert content.endswith("\n\n")
    return [json.loads(each.removeprefix("data: ")) for each in content.rstrip("\n").split("\n\n")]


async def test_generate_answers_with_the_whole_text(served: Served) -> None:
    for body in (
        {"text_input": "w", "max_tokens": 2, "id": "7"},
        {"text_input": "w", "parameters": {"max_tokens": 2, "stop": ["x"]}, "id": "7", "stream": False},
        {"text_input": "w", "sampling_parameters": '{"max_tokens": 2}', "id": "7"},
        {"text_input": "w", "sampling_parameters": {"max_tokens": 2}, "id": "7", "parameters": {"stream": True}},
    ):
        answer = await served.http.post(GENERATE, json=body)
        assert answer.json() == {
            "model_name": "writer",
            "model_version": "1",
            "id": "7",
            "text_output": words(2),
            "finish_reason": "length",
            "num_input_tokens": 1,
            "num_output_tokens": 2,
        }


async def test_generate_stream_sends_an_event_for_each_part(served: Served) -> None:
    answer = await served.http.post(STREAM, json={"text_input": "ü", "parameters": {"max_tokens": 2, "stream": True}})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    first, second, last = events(answer.text)
    assert first == {"model_name": "writer", "model_version": "1", "text_output": "ü0 "}
    assert second["text_output"] == "ü1 "
    assert (last["text_output"], last["finish_reason"], last["num_output_tokens"]) == ("", "length", 2)
    answer = await served.http.post(STREAM, json={"text_input": "w", "max_tokens": 2, "stream": False})
    assert [each["text_output"] for each in events(answer.text)] == [words(2)]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"text_input": "bad"}, "nothing to say"),
        ({"text_input": 7}, "'text_input' of a request to model 'writer' must be a string"),
        ({"text_input": {"a": 1}}, "must be a string"),
        ({"text_input": "w", "stream": 1}, "'stream' of a request to model 'writer' must be true or false"),
        ({"text_input": "w", "sampling_parameters": "["}, "'sampling_parameters' is no JSON object"),
        ({"text_input": "w", "parameters": [1]}, "'parameters' is no JSON object"),
        ({"text_input": "w", "id": 7}, "'id' of a request"),
        ({"text_input": "w", "timeout": "soon"}, "parameter 'timeout' of the request"),
    ],
)
@pytest.mark.parametrize("path", [GENERATE, STREAM])
async def test_what_is_refused_before_the_first_part_has_a_status(
    served: Served, path: str, body: dict[str, Any], problem: str
) -> None:
    answer = await served.http.post(path, json=body)
    assert answer.status_code == 400
    assert problem in answer.json()["error"]


async def test_an_error_after_a_part_is_an_event(served: Served) -> None:
    answer = await served.http.post(STREAM, json={"text_input": "w", "max_tokens": 3, "fail_after": 1})
    first, last = events(answer.text)
    assert first["text_output"] == "w0 "
    assert "the engine failed" in last["error"]


async def test_a_client_that_leaves_ends_the_run(served: Served) -> None:
    body = {"text_input": "w", "max_tokens": ENDLESS, "pause_s": 0.001}
    async with served.http.stream("POST", STREAM, json=body) as answer:
        await anext(answer.aiter_bytes())
    await served.is_free()
    assert served.rig.engine.statistics("writer")[0].drops == {"cancelled": 1}


async def test_a_client_that_does_not_read_ends_the_run(served: Served) -> None:
    body = json.dumps({"text_input": "w", "max_tokens": ENDLESS, "part_bytes": 60_000}).encode()
    head = f"POST {STREAM} HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    _, writer = await asyncio.open_connection(served.http_address.host, served.http_address.port, limit=1024)
    writer.write(head + body)
    await until(lambda: served.session.steps > 0)
    await served.is_free()
    writer.transport.abort()
    assert served.rig.engine.statistics("writer")[0].drops == {"cancelled": 1}
