"""ModelStreamInfer as tritonclient and plain grpcio drive it."""

import asyncio
import queue

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc as blocking
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.errors import Fault, RequestError
from tests.simulators.grpc_gateway import serving
from tests.simulators.inference import SimulatedInference

pytestmark = pytest.mark.asyncio


class Staggered(SimulatedInference):
    """Inference that holds back the request called "slow" until the gate opens."""

    async def infer(self, request):
        if request.id == "slow":
            return await super().infer(request)
        gate, self.gate = self.gate, asyncio.Event()
        self.gate.set()
        try:
            return await super().infer(request)
        finally:
            self.gate = gate


class Broken(SimulatedInference):
    """Inference with a defect that one request meets."""

    async def infer(self, request):
        if request.id == "defect":
            raise ZeroDivisionError("secret detail")
        return await super().infer(request)


def request(model="identity_fp32", request_id="", *, final=False):
    sent = service_pb2.ModelInferRequest(
        model_name=model,
        id=request_id,
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 1]}],
        raw_input_contents=[np.float32(1).tobytes()],
    )
    if final:
        sent.parameters["triton_enable_empty_final_response"].bool_param = True
    return sent


def opened(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer()


async def test_an_error_is_in_band_and_the_stream_goes_on():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stream = opened(channel)
        for sent in (request(request_id="1"), request("no", "2"), request(request_id="3")):
            await stream.write(sent)
            reply = await stream.read()
            assert reply.infer_response.id == sent.id
            expected = "Request for unknown model: 'no' is not found" if sent.id == "2" else ""
            assert reply.error_message == expected
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_large_request_with_an_impossible_tensor_is_refused_with_its_id():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stream = opened(channel)
        for kind, shape in (("FP23", [1, 8192]), ("FP32", [1, -8192])):
            sent = request(request_id="large")
            sent.inputs[0].datatype, sent.inputs[0].shape[:] = kind, shape
            sent.raw_input_contents[0] = bytes(4 * 8192)
            await stream.write(sent)
            reply = await stream.read()
            assert (reply.infer_response.id, bool(reply.error_message)) == ("large", True)
        await stream.write(request(request_id="good"))
        assert (await stream.read()).infer_response.id == "good"


async def test_answers_overtake_slow_ones_and_carry_their_id():
    async with serving(inference=Staggered()) as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.gate.clear()
        stream = opened(channel)
        await stream.write(request(request_id="slow"))
        await stream.write(request(request_id="fast"))
        assert (await stream.read()).infer_response.id == "fast"
        gateway.inference.gate.set()
        assert (await stream.read()).infer_response.id == "slow"


async def test_a_defect_of_ours_costs_one_message():
    async with serving(inference=Broken()) as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stream = opened(channel)
        await stream.write(request(request_id="defect"))
        reply = await stream.read()
        assert reply.error_message.startswith("internal error ")
        assert "secret" not in reply.error_message
        await stream.write(request(request_id="good"))
        assert (await stream.read()).infer_response.id == "good"


async def test_the_final_response_flag():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stream = opened(channel)
        await stream.write(request(final=True))
        assert (await stream.read()).infer_response.parameters["triton_final_response"].bool_param
        await stream.write(request("no", final=True))
        assert (await stream.read()).infer_response.parameters["triton_final_response"].bool_param
        await stream.write(request())
        assert not (await stream.read()).infer_response.parameters


async def test_a_stream_that_is_cancelled_cancels_its_requests():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.gate.clear()
        stream = opened(channel)
        await stream.write(request())
        await gateway.inference.until(lambda: gateway.inference.requests)
        stream.cancel()
        await gateway.inference.until(lambda: gateway.inference.cancelled)


async def test_bytes_that_are_no_message_end_the_stream():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")()
        await stream.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_stopping_ends_an_idle_stream_and_finishes_a_busy_one():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.gate.clear()
        stream = opened(channel)
        await stream.write(request(request_id="last"))
        await gateway.inference.until(lambda: gateway.inference.requests)
        stopping = asyncio.ensure_future(gateway.frontend.stop(30))
        await asyncio.sleep(0)
        gateway.inference.gate.set()
        assert (await stream.read()).infer_response.id == "last"
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_the_clients_asynchronous_stream():
    async def inputs():
        for number in range(20):
            given = triton.InferInput("x", [1, 1], "INT32").set_data_from_numpy(np.full((1, 1), number, "<i4"))
            model = "no" if number == 5 else "identity_int32"
            yield {"model_name": model, "inputs": [given], "request_id": str(number)}

    answers, errors = {}, []
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        async for result, error in client.stream_infer(inputs()):
            if error is None:
                answers[result.get_response().id] = int(result.as_numpy("y")[0, 0])
            else:
                errors.append(error.message())
    assert answers == {str(number): number for number in range(20) if number != 5}
    assert errors == ["Request for unknown model: 'no' is not found"]


async def test_the_clients_blocking_stream():
    def use(target):
        replies = queue.Queue()
        given = blocking.InferInput("x", [1, 1], "FP32").set_data_from_numpy(np.ones((1, 1), "<f4"))
        with blocking.InferenceServerClient(target) as client:
            client.start_stream(callback=lambda result, error: replies.put((result, error)))
            client.async_stream_infer("identity_fp32", [given], enable_empty_final_response=True)
            result, error = replies.get(timeout=20)
            client.stop_stream()
        return result, error

    async with serving() as gateway:
        result, error = await asyncio.to_thread(use, gateway.target)
    assert error is None
    assert result.get_response().parameters["triton_final_response"].bool_param


async def test_a_refusal_by_the_engine_is_in_band_too():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        gateway.inference.fault = RequestError(Fault.OVERLOADED, "the queue is full")
        stream = opened(channel)
        await stream.write(request())
        assert (await stream.read()).error_message == "the queue is full"
