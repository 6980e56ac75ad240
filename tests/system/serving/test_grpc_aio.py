"""grpcio's and tritonclient's asyncio clients on a real daemon: a thousand calls at once, streams from both ends."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.simulators.daemon import ANYWHERE, QUIET, SHORT_TRIALS, golden, running

pytestmark = pytest.mark.asyncio
LONG_S = 30.0
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def served(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("s")
    config = f"{QUIET}{SHORT_TRIALS}\n[shares]\ncaller_percent = 100\n"  # one client may make all calls
    listens = [ANYWHERE, f"unix:{folder}/g.sock"]
    with running(folder, state=state, config=config, grpc=listens, http=["off"]) as daemon:
        yield daemon


@pytest.fixture(params=["tcp", "unix"])
def target(request, served):
    return served.addresses("grpc")[request.param == "unix"]


def stub(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def digit(row, **fields):
    wanted = golden("meter-reader", row + 1)
    asked = service_pb2.ModelInferRequest(
        model_name="meter-reader", raw_input_contents=[wanted.rows[row].tobytes()], **fields
    )
    asked.inputs.add(name=wanted.name, datatype="FP32", shape=[1, *wanted.rows.shape[1:]])
    return asked


def named(reply):
    return int(np.frombuffer(reply.raw_output_contents[0], "<f4").argmax())


CLASSES = [int(scores.argmax()) for scores in golden("meter-reader", 50).scores]


async def test_a_thousand_calls_at_once_on_one_channel(target):
    """Each gets the answer to its own question; as many as a connection may have open by default."""
    asked = [digit(row) for row in range(50)]
    async with grpc.aio.insecure_channel(target) as channel:

        async def ask(number):
            asked_now = service_pb2.ModelInferRequest()
            asked_now.CopyFrom(asked[number % 50])
            asked_now.id = f"{number}"
            reply = await stub(channel).ModelInfer(asked_now, timeout=LONG_S)
            return reply.id, named(reply)

        heard = await asyncio.gather(*map(ask, range(1000)))
    assert heard == [(f"{number}", CLASSES[number % 50]) for number in range(1000)]


async def test_refusals_between_answers(target):
    async with grpc.aio.insecure_channel(target) as channel:
        asked = [digit(0) if number % 2 else service_pb2.ModelInferRequest(model_name="no") for number in range(100)]
        calls = [stub(channel).ModelInfer(one, timeout=LONG_S) for one in asked]
        codes = [await call.code() for call in calls]
    assert codes == [CODE.OK if number % 2 else CODE.NOT_FOUND for number in range(100)]


async def test_half_of_a_hundred_calls_are_cancelled(target):
    async with grpc.aio.insecure_channel(target) as channel:
        calls = [stub(channel).ModelInfer(digit(0), timeout=LONG_S) for _ in range(100)]
        for call in calls[::2]:
            call.cancel()
        assert {await call.code() for call in calls[::2]} <= {CODE.CANCELLED, CODE.OK}
        assert {await call.code() for call in calls[1::2]} == {CODE.OK}


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compression_of_the_whole_channel(target, compression):
    async with grpc.aio.insecure_channel(target, compression=compression) as channel:
        assert named(await stub(channel).ModelInfer(digit(3), timeout=LONG_S)) == CLASSES[3]


async def test_a_stream_question_by_question(target):
    async with grpc.aio.insecure_channel(target) as channel:
        stream = stub(channel).ModelStreamInfer(timeout=LONG_S)
        for row in range(20):
            await stream.write(digit(row, id=f"{row}"))
            reply = (await stream.read()).infer_response
            assert (reply.id, named(reply)) == (f"{row}", CLASSES[row])
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert (await stream.code(), await stream.details()) == (CODE.OK, "")


async def test_a_stream_closed_on_our_side_before_its_answers_are_read(target):
    async with grpc.aio.insecure_channel(target) as channel:
        stream = stub(channel).ModelStreamInfer(timeout=LONG_S)
        for row in range(50):
            await stream.write(digit(row, id=f"{row}"))
        await stream.done_writing()
        heard = {reply.infer_response.id: named(reply.infer_response) async for reply in stream}
        assert await stream.code() is CODE.OK
    assert heard == {f"{row}": CLASSES[row] for row in range(50)}


async def test_streams_left_early(target):
    async with grpc.aio.insecure_channel(target) as channel:
        for read in (0, 1):
            stream = stub(channel).ModelStreamInfer(timeout=LONG_S)
            await stream.write(digit(0))
            for _ in range(read):
                await stream.read()
            stream.cancel()
            assert await stream.code() is CODE.CANCELLED
        assert named(await stub(channel).ModelInfer(digit(0), timeout=LONG_S)) == CLASSES[0]


async def test_nonsense_ends_a_stream(target):
    async with grpc.aio.insecure_channel(target) as channel:
        stream = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")(timeout=LONG_S)
        await stream.write(b"\xff\xff\xff")
        assert await stream.code() is CODE.INVALID_ARGUMENT
        assert await stream.details() == "the 3 bytes sent are no inference.ModelInferRequest message"


async def test_a_hundred_streams_at_once(target):
    async with grpc.aio.insecure_channel(target) as channel:

        async def converse(row):
            stream = stub(channel).ModelStreamInfer(iter([digit(row)] * 3), timeout=LONG_S)
            return [named(reply.infer_response) async for reply in stream]

        heard = await asyncio.gather(*(converse(number % 50) for number in range(100)))
    assert heard == [[CLASSES[number % 50]] * 3 for number in range(100)]


async def test_triton_s_client_on_it_too(target):
    wanted = golden("meter-reader", 1)
    given = triton.InferInput(wanted.name, list(wanted.rows.shape), "FP32").set_data_from_numpy(wanted.rows)
    async with triton.InferenceServerClient(target) as client:
        results = await asyncio.gather(*(client.infer("meter-reader", [given], request_id=f"{n}") for n in range(50)))
    assert {int(result.as_numpy("scores").argmax()) for result in results} == {CLASSES[0]}
    assert [result.get_response().id for result in results] == [f"{n}" for n in range(50)]
