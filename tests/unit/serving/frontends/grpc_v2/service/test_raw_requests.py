"""Requests that stay bytes from the socket to the run: a real server, and a real engine on simulated sessions."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import shared_memory

from gateway.common.domain.access import Address, Security
from gateway.common.domain.manifest import ModelManifest
from gateway.common.domain.tensor import Datatype, Tensors
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.messages import ReceivedMessage
from gateway.serving.frontends.grpc_v2.transport.server import GrpcServer
from gateway.serving.frontends.grpc_v2.transport.stream_requests import StreamRequests
from gateway.serving.frontends.placement import RegionSpan
from gateway.serving.frontends.pools import Pools
from gateway.serving.frontends.regions import Regions, Registrant
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.constants import settings_with
from tests.simulators.engine_rig import Rig, X, Y, manifest, measured
from tests.simulators.grpc_gateway import UNDIVIDED
from tests.simulators.segments import SHARED_MEMORY, shared

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

    def objects_only(self) -> None:
        """Close all batches: what is sent next is submitted as an object."""
        for one in self.rig.registry.targets():
            one._raw.close()

    async def ask(self, value: float, ident: str = "", model: str = "m", **how: Any) -> pb.ModelInferResponse:
        answer: pb.ModelInferResponse = await self._unary(asked(value, ident, model), **how)
        return answer

    async def send(self, request: pb.ModelInferRequest) -> pb.ModelInferResponse:
        answer: pb.ModelInferResponse = await self._unary(request)
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
async def served(
    regions: Regions | None = None, more: Sequence[ModelManifest] = (), **settings: Any
) -> AsyncIterator[Gateway]:
    rig = Rig(settings_with(EngineSettings(), inline_limit_us=10**7))  # a busy machine moves no run to the worker
    rig.trials["a"] = measured(10.0, 1.0)
    await rig.serve(manifest(), manifest("n", inputs=(replace(X, finite=True),)), *more)
    pools = Pools(UNDIVIDED)
    given = settings_with(GrpcSettings(), **settings)
    service = InferenceService(rig.engine, rig.engine, rig.engine, given, regions, pools=pools)  # type: ignore[arg-type]
    server = GrpcServer(service, given, Security())
    (address,) = await server.start([Address("127.0.0.1", 0)])
    async with grpc.aio.insecure_channel(str(address), [("grpc.max_receive_message_length", -1)]) as channel:
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


def wide(values: np.ndarray[Any, Any], region: str = "") -> pb.ModelInferRequest:
    """Return a request of one row for `w`, whose tensor is in the message, or at the beginning of a region."""
    request = pb.ModelInferRequest(model_name="w")
    tensor = request.inputs.add(name="x", datatype="FP32", shape=[1, values.size])
    if region:
        tensor.parameters["shared_memory_region"].string_param = region
        tensor.parameters["shared_memory_byte_size"].int64_param = values.nbytes
    else:
        request.raw_input_contents.append(values.tobytes())
    return request


def end(inputs: Tensors) -> Tensors:
    """Answer with the last values of each row."""
    assert inputs["x"].flags.aligned
    return {"y": inputs["x"][:, -4:].copy()}


@asynccontextmanager
async def wide_served(width: int, regions: Regions | None = None) -> AsyncIterator[Gateway]:
    shapes: dict[str, Any] = {"inputs": (replace(X, shape=(-1, width)),), "outputs": (replace(Y, shape=(-1, 4)),)}
    async with served(regions, more=(manifest("w", **shapes),)) as gateway:
        for session in gateway.rig.runtime.sessions:  # models are opened side by side: none is surely the last
            session.run = end  # type: ignore[method-assign]
        yield gateway


async def both_ways(gateway: Gateway, request: pb.ModelInferRequest) -> list[Any]:
    """Return what a request gets as bytes in a batch, then as an object: its answer, or status and message."""
    found = []
    for objects_only in (False, True):
        if objects_only:
            gateway.objects_only()
        try:
            found.append(await gateway.send(request))
        except grpc.aio.AioRpcError as error:
            found.append((error.code(), error.details()))
    return found


@pytest.mark.parametrize("width", [4, 5_000, 70_000, 270_000])  # below and above 16 KiB, 256 KiB and 1 MiB
async def test_a_request_of_any_size_is_answered_as_an_object_would_be(width: int) -> None:
    async with wide_served(width) as gateway:
        rng = np.random.default_rng(width)
        for _ in range(3):
            await gateway.send(wide(rng.random(width, np.float32)))
        before, values = gateway.batches, rng.random(width, np.float32)
        quick, slow = await both_ways(gateway, wide(values))
        assert gateway.batches == before + 1
        assert quick == slow
        assert quick.raw_output_contents[0] == values[-4:].tobytes()


@pytest.mark.parametrize("width", [4, 5_000, 70_000])
async def test_shared_memory_is_read_when_the_request_runs(width: int) -> None:
    regions = Regions(SharedMemorySettings(allowed=True, over_tcp=True))
    values = np.arange(width, dtype=np.float32)
    with shared(values.nbytes) as (key, _):
        async with wide_served(width, regions) as gateway:
            regions.register(Registrant("127.0.0.1"), "r", key, 0, values.nbytes)
            path, request = SHARED_MEMORY / key.strip("/"), wide(values, "r")
            for count in range(4):
                path.write_bytes((values + count).tobytes())
                assert (await gateway.send(request)).raw_output_contents[0] == (values + count)[-4:].tobytes()
            before = gateway.batches
            quick, slow = await both_ways(gateway, request)
            assert (gateway.batches, quick) == (before + 1, slow)
            await gateway.send(request)  # it asks for a batch again
            os.truncate(path, values.nbytes - 1)
            for answer in await both_ways(gateway, request):
                assert answer[0] is grpc.StatusCode.INVALID_ARGUMENT
                assert "truncated" in answer[1]
            path.write_bytes(values.tobytes())
            for _ in range(2):  # a client that truncates its segment costs its own request only
                assert (await gateway.send(request)).raw_output_contents[0] == values[-4:].tobytes()
            regions.unregister("127.0.0.1")
            for answer in await both_ways(gateway, request):
                assert answer == (grpc.StatusCode.NOT_FOUND, "Unable to find shared memory region: 'r'")


async def test_a_region_that_is_gone_when_its_request_runs_is_still_read() -> None:
    regions, values = Regions(SharedMemorySettings(allowed=True, over_tcp=True)), np.arange(4, dtype=np.float32)
    with shared(values.nbytes) as (key, handle):
        shared_memory.set_shared_memory_region(handle, [values])
        regions.register(Registrant("ann"), "r", key, 0, values.nbytes)
        read = regions.source("ann", RegionSpan("r", values.nbytes), Datatype.FP32)
        regions.unregister("ann")
        assert bytes(read()) == values.tobytes()


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
