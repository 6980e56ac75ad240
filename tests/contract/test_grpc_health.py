"""grpc.health.v1 as its own client sees it, and the end of service."""

import asyncio

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators.grpc_gateway import serving

pytestmark = pytest.mark.asyncio
MODEL = "identity_fp32"
STATUS = health_pb2.HealthCheckResponse


def asked(service=""):
    return health_pb2.HealthCheckRequest(service=service)


def stub(channel):
    return health_pb2_grpc.HealthStub(channel)


async def test_check():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.unready.add("identity_bool")
        assert (await stub(channel).Check(asked())).status == STATUS.SERVING
        assert (await stub(channel).Check(asked(MODEL))).status == STATUS.SERVING
        assert (await stub(channel).Check(asked("identity_bool"))).status == STATUS.NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(channel).Check(asked("no"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_watch_follows_changes_and_ends_when_the_gateway_stops():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        watch, unknown = stub(channel).Watch(asked(MODEL)), stub(channel).Watch(asked("no"))
        assert (await watch.read()).status == STATUS.SERVING
        assert (await unknown.read()).status == STATUS.SERVICE_UNKNOWN
        gateway.inference.unready.add(MODEL)
        gateway.service.health.changed()
        assert (await watch.read()).status == STATUS.NOT_SERVING
        gateway.inference.unready.clear()
        gateway.service.health.changed()
        assert (await watch.read()).status == STATUS.SERVING
        await gateway.frontend.stop(30)
        assert (await watch.read()).status == STATUS.NOT_SERVING
        assert await watch.read() is grpc.aio.EOF
        assert await watch.code() is grpc.StatusCode.OK


async def test_a_watcher_who_leaves_gives_its_place_back():
    settings = GrpcSettings(max_health_watches=1)
    async with serving(settings=settings) as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        first = stub(channel).Watch(asked())
        await first.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub(channel).Watch(asked()).read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        first.cancel()
        while not await _watching(channel):  # each try is a round trip; the test's timeout bounds them
            pass


async def _watching(channel):
    try:
        return (await stub(channel).Watch(asked()).read()).status == STATUS.SERVING
    except grpc.aio.AioRpcError:
        return False


async def test_stopping_finishes_what_runs_and_takes_no_more():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.gate.clear()
        infer = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer
        sent = service_pb2.ModelInferRequest(
            model_name=MODEL,
            inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 1]}],
            raw_input_contents=[bytes(4)],
        )
        running = infer(sent)
        await gateway.inference.until(lambda: gateway.inference.requests)
        stopping = asyncio.ensure_future(gateway.frontend.stop(30))
        await asyncio.sleep(0)
        gateway.inference.gate.set()
        assert (await running).outputs[0].name == "y"
        await stopping
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(sent)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_outlasts_the_grace_is_cancelled():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.gate.clear()
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(
            service_pb2.ModelInferRequest(model_name=MODEL, inputs=[{"name": "x", "datatype": "FP32", "shape": [0]}])
        )
        await gateway.inference.until(lambda: gateway.inference.requests)
        await gateway.frontend.stop(0.01)
        assert await call.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert gateway.inference.cancelled == 1


async def test_stopping_twice_is_harmless():
    async with serving() as gateway:
        await gateway.frontend.stop(0)
        await gateway.frontend.stop(0)
