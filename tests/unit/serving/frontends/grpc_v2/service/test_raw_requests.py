"""Requests that stay bytes from the socket to the run: a real server, and a real engine on simulated sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.common.domain.access import Address, Security
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.messages import ReceivedMessage
from gateway.serving.frontends.grpc_v2.transport.server import GrpcServer
from gateway.serving.frontends.grpc_v2.transport.stream_requests import StreamRequests
from gateway.serving.frontends.pools import Pools
from tests.simulators.constants import settings_with
from tests.simulators.engine_rig import Rig, X, manifest, measured
from tests.simulators.grpc_gateway import UNDIVIDED

pytestmark = pytest.mark.asyncio
PATH = "/inference.GRPCInferenceService/"
MODELS = ("m", "n")


class Gateway:
    """A client of a server over `rig`. The model `n` refuses NaN."""

    def __init__(self, rig: Rig, channel: grpc.aio.Channel) -> None:
        self.rig = rig
        self._unary = channel.unary_unary(
            f"{PATH}ModelInfer", pb.ModelInferRequest.SerializeToString, pb.ModelInferResponse.FromString
        )
        self._stream = channel.stream_stream(
            f"{PATH}ModelStreamInfer", pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )

    @property
    def batches(self) -> int:
        """Runs of requests that stayed bytes."""
        return sum(len(one._answers._uncounted) for one in self.rig.registry.targets())

    async def ask(self, value: float, ident: str = "", model: str = "m", **how: Any) -> pb.ModelInferResponse:
        answer: pb.ModelInferResponse = await self._unary(asked(value, ident, model), **how)
        return answer

    async def stream(self, *requests: pb.ModelInferRequest) -> list[pb.ModelStreamInferResponse]:
        return [answer async for answer in self._stream(iter(requests))]


def asked(value: float, ident: str = "", model: str = "m") -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model, id=ident, raw_input_contents=[np.float32(value).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    return request


def value_of(answer: pb.ModelInferResponse) -> float:
    return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Gateway]:
    rig = Rig()
    rig.trials["a"] = measured(10.0, 1.0)
    await rig.serve(manifest(), manifest("n", inputs=(replace(X, finite=True),)))
    pools = Pools(UNDIVIDED)
    given = settings_with(GrpcSettings(), **settings)
    service = InferenceService(rig.engine, rig.engine, rig.engine, given, pools=pools)  # type: ignore[arg-type]
    server = GrpcServer(service, given, Security())
    (address,) = await server.start([Address("127.0.0.1", 0)])
    async with grpc.aio.insecure_channel(str(address)) as channel:
        gateway = Gateway(rig, channel)
        for model in MODELS * 3:  # the first of its like is parsed, the second asks for a batch
            await gateway.ask(0.0, model=model)
        yield gateway
    await server.stop(0)
    await rig.repository.close()


async def test_each_caller_gets_its_own_answer_and_id() -> None:
    async with served() as gateway:
        before = gateway.batches
        for index in range(40):
            model, ident = MODELS[index % 2], f"id-{index}" if index % 3 else ""
            answer = await gateway.ask(float(index), ident, model)
            assert (answer.model_name, answer.model_version, answer.id) == (model, "1", ident)
            assert (value_of(answer), answer.outputs[0].name, list(answer.outputs[0].shape)) == (index, "y", [1, 1])
        assert gateway.batches > before


async def test_what_a_batch_does_not_answer_is_answered_by_the_engine() -> None:
    async with served() as gateway:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await gateway.ask(float("nan"), model="n")
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "NaN" in str(refused.value.details())
        for session in gateway.rig.runtime.sessions:
            session.failure = RuntimeError("broken")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await gateway.ask(2.0, model="n")
        assert failed.value.code() in {grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT}
        for session in gateway.rig.runtime.sessions:
            session.failure = None
        assert value_of(await gateway.ask(3.0, model="n", timeout=20)) == 3.0


@pytest.mark.parametrize("in_flight", [1, 2, 16])
async def test_messages_of_a_stream_are_answered_once_each_with_errors_in_band(in_flight: int) -> None:
    async with served(stream_in_flight=in_flight) as gateway:
        before = gateway.batches
        requests = [asked(float("nan") if index == 7 else float(index), f"id-{index}", "n") for index in range(30)]
        requests[3].parameters["triton_enable_empty_final_response"].bool_param = True
        answers = await gateway.stream(*requests)
        assert gateway.batches > before
    good = {each.infer_response.id: value_of(each.infer_response) for each in answers if not each.error_message}
    assert good == {f"id-{index}": index for index in range(30) if index != 7}
    (bad,) = [each for each in answers if each.error_message]
    assert (bad.infer_response.id, "NaN" in bad.error_message) == ("id-7", True)
    assert len(answers) == 30
    (marked,) = [each for each in answers if each.infer_response.parameters]
    assert marked.infer_response.id == "id-3"


async def test_the_method_that_ends_idle_streams_gets_a_request_now_and_then() -> None:
    settings, idle_ns = GrpcSettings(stream_idle_s=4.0), 4_000_000_000
    requests = SimpleNamespace(find=lambda _: (None, ""), collect=lambda *_: True)
    connection: Any = SimpleNamespace(settings=settings, submission=requests)
    request_headers = SimpleNamespace(ends_ns=lambda _: None, info=SimpleNamespace(rights=None))
    small = StreamRequests(connection, Stream(1, request_headers, 0, 0, 0), again=lambda _: None, changed=lambda: None)
    message = ReceivedMessage(b"message", compressed=False)
    assert small.offer(message, idle_ns // 4, 9)
    assert not small.offer(message, idle_ns // 4 + 1, 9)
    assert not small.offer(message, idle_ns // 4 + 2, 9), "until the method has taken one"
    small.noted_ns = idle_ns // 4
    assert small.offer(message, idle_ns // 2, 9)
    assert not small.offer(message, idle_ns // 2, 2), "as many as may be in flight"
