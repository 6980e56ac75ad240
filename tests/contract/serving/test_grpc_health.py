"""grpc.health.v1 as its own client sees it."""

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators.constants import settings_with
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
    settings = settings_with(GrpcSettings(), max_health_watches=1)
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
