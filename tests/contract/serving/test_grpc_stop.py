"""The end of service: nothing is lost that can be finished, nothing hangs that cannot."""

import asyncio

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators.constants import settings_with
from tests.simulators.grpc_gateway import serving
from tests.simulators.inference import SimulatedInference

pytestmark = pytest.mark.asyncio
REQUEST = service_pb2.ModelInferRequest(
    model_name="identity_fp32",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 1]}],
    raw_input_contents=[bytes(4)],
)


class Stubborn(SimulatedInference):
    """Inference whose load does not end, even if it is cancelled, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def load(self, model):
        self.loaded.append(model)
        self._moved.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await self.let_go.wait()
            raise


def infer(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer


async def test_stopping_finishes_what_runs_and_takes_no_more():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.gate.clear()
        running = infer(channel)(REQUEST)
        await gateway.inference.until(lambda: gateway.inference.requests)
        stopping = asyncio.ensure_future(gateway.frontend.stop(30))
        await asyncio.sleep(0)
        gateway.inference.gate.set()
        assert (await running).outputs[0].name == "y"
        await stopping
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(channel)(REQUEST)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_outlasts_the_grace_is_cancelled():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.gate.clear()
        call = infer(channel)(REQUEST)
        await gateway.inference.until(lambda: gateway.inference.requests)
        await gateway.frontend.stop(0.01)
        assert gateway.inference.cancelled == 1
        assert await call.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


async def test_a_call_that_withstands_its_cancellation_does_not_hold_up_the_stop(caplog):
    settings = settings_with(GrpcSettings(), cancel_limit_s=0.01)
    async with serving(settings=settings, inference=Stubborn()) as gateway:
        async with grpc.aio.insecure_channel(gateway.target) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            call = stub.RepositoryModelLoad(service_pb2.RepositoryModelLoadRequest(model_name="m"))
            await gateway.inference.until(lambda: gateway.inference.loaded)
            await gateway.frontend.stop(0)
            assert await call.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        gateway.inference.let_go.set()
    assert "1 gRPC calls did not end within 0.01 s" in caplog.text


async def test_a_stream_that_opens_while_the_gateway_stops_does_not_hold_it_up():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        await stub.ServerLive(service_pb2.ServerLiveRequest())
        stopping = asyncio.ensure_future(gateway.frontend.stop(3600))
        await asyncio.sleep(0)
        stream = stub.ModelStreamInfer()
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_stopping_twice_is_harmless():
    async with serving() as gateway:
        await gateway.frontend.stop(0)
        await gateway.frontend.stop(0)
