"""Answers to bad input: exact codes and texts, seen by plain grpcio stubs and by tritonclient."""

import asyncio
import gc
import gzip
import logging
import re
import time
import tracemalloc

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import WAITING_HELPS
from gateway.serving.frontends.grpc_v2.service.message_memory import SPARE_BYTES
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.replies import GRPC_STATUS
from tests.simulators.grpc_gateway import serving

pytestmark = pytest.mark.asyncio
MIB = 1024 * 1024


def request(model="identity_fp32", values=(1.0, 2.0), **fields):
    raw = np.array(values, "<f4").tobytes()
    inputs = [{"name": "x", "datatype": "FP32", "shape": [1, len(values)]}]
    return service_pb2.ModelInferRequest(
        **{"model_name": model, "inputs": inputs, "raw_input_contents": [raw], **fields}
    )


def connected(gateway, **options):
    return grpc.aio.insecure_channel(gateway.target, options=list(options.items()))


def stub(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


async def refused(call):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        (request("no"), "NOT_FOUND", "Request for unknown model: 'no' is not found"),
        (request(model_version="9"), "NOT_FOUND", "Request for unknown model: 'identity_fp32' is not found"),
        (
            request(outputs=[{"name": "y"}, {"name": "y"}]),
            "INVALID_ARGUMENT",
            "output 'y' already exists in request",
        ),
        (
            request(inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 2], "contents": {"fp32_contents": [1, 2]}}]),
            "INVALID_ARGUMENT",
            "contents field must not be specified when using raw_input_contents for 'x' for model 'identity_fp32'",
        ),
        (
            request(parameters={"triton_priority": {"int64_param": 1}}),
            "INVALID_ARGUMENT",
            (
                "parameter keys starting with 'triton_' are reserved for Triton usage; only "
                "triton_enable_empty_final_response is allowed, not 'triton_priority'"
            ),
        ),
        (
            request(raw_input_contents=[bytes(8), bytes(8)]),
            "INVALID_ARGUMENT",
            "raw_input_contents has 2 entries for 1 inputs of model 'identity_fp32'",
        ),
        (
            request(raw_input_contents=[bytes(5)]),
            "INVALID_ARGUMENT",
            "tensor 'x' has 5 bytes, but FP32 of shape [1, 2] takes 8",
        ),
    ],
)
async def test_requests_that_are_refused(sent, code, text):
    async with serving() as gateway, connected(gateway) as channel:
        error = await refused(stub(channel).ModelInfer(sent))
    assert (error.code().name, error.details()) == (code, text)


@pytest.mark.parametrize("fault", Fault)
async def test_every_fault_has_its_code(fault):
    async with serving() as gateway, connected(gateway) as channel:
        gateway.inference.fault = RequestError(fault, "why, and grüße", retry_after_s=1.5)
        error = await refused(stub(channel).ModelInfer(request()))
    assert (error.code().name, error.details()) == (GRPC_STATUS[fault], "why, and grüße")
    pushback = dict(error.trailing_metadata()).get("grpc-retry-pushback-ms")
    assert pushback == ("1500" if fault in WAITING_HELPS else None)


async def test_tritonclient_sees_the_same():
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        with pytest.raises(InferenceServerException) as caught:
            await client.get_model_metadata("no")
        assert caught.value.status() == "StatusCode.NOT_FOUND"
        assert caught.value.message() == "Request for unknown model: 'no' is not found"
        for call in (
            client.register_system_shared_memory("r", "/r", 8),
            client.register_cuda_shared_memory("r", b"", 0, 8),
            client.unregister_system_shared_memory(),
            client.get_trace_settings(),
            client.get_log_settings(),
        ):
            with pytest.raises(InferenceServerException) as caught:
                await call
            assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


async def test_a_defect_of_ours_is_logged_and_not_shown(caplog):
    async with serving() as gateway, connected(gateway) as channel:
        gateway.inference.fault = ZeroDivisionError("secret detail")
        error = await refused(stub(channel).ModelInfer(request()))
    number = re.fullmatch(r"internal error (\w{8}); the gateway's log says more under this number", error.details())
    assert (error.code(), bool(number)) == (grpc.StatusCode.INTERNAL, True)
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert number[1] in record.getMessage()
    assert "secret detail" in str(record.exc_info[1])


async def test_bytes_that_are_no_message():
    async with serving() as gateway, connected(gateway) as channel:
        error = await refused(channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff\xff"))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "the 3 bytes sent are no inference.ModelInferRequest message"


async def test_an_unknown_method():
    async with serving() as gateway, connected(gateway) as channel:
        error = await refused(channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b""))
    assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_long_names_do_not_make_long_trailers():
    async with serving() as gateway, connected(gateway) as channel:
        error = await refused(stub(channel).ModelInfer(request("n" * 50_000)))
    assert (error.code(), len(error.details())) == (grpc.StatusCode.NOT_FOUND, 1024)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_a_message_of_65_mib_is_refused_and_the_connection_goes_on(compression):
    sent = request(raw_input_contents=[bytes(65 * MIB)])
    assert len(gzip.compress(bytes(MIB))) < 4096  # on the wire the compressed one is small
    async with serving() as gateway, connected(gateway, **{"grpc.max_send_message_length": -1}) as channel:
        error = await refused(stub(channel).ModelInfer(sent, compression=compression))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub(channel).ModelInfer(request())).outputs[0].name == "y"
        assert len(gateway.inference.requests) == 1


async def test_headers_beyond_the_bound_are_refused():
    async with serving() as gateway, connected(gateway) as channel:
        error = await refused(stub(channel).ModelInfer(request(), metadata=(("x-long", "x" * 20_000),)))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert gateway.inference.requests == []


async def test_a_message_of_63_mib_is_served():
    values = np.zeros((1, 63 * MIB // 4), "<f4")
    given = triton.InferInput("x", list(values.shape), "FP32").set_data_from_numpy(values)
    async with serving() as gateway, triton.InferenceServerClient(gateway.target) as client:
        result = await client.infer("identity_fp32", [given])
    assert result.as_numpy("y").shape == values.shape


async def test_the_timeout_parameter_reaches_the_engine():
    sent = request()
    sent.parameters["timeout"].int64_param = 1000
    async with serving() as gateway, connected(gateway) as channel:
        gateway.inference.gate.clear()
        error = await refused(stub(channel).ModelInfer(sent))
    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert error.details() == "the deadline passed before model 'identity_fp32' ran"


async def test_the_calls_deadline_reaches_the_engine():
    before_ns = time.monotonic_ns()
    async with serving() as gateway, connected(gateway) as channel:
        await stub(channel).ModelInfer(request(), timeout=50)
        (arrived,) = gateway.inference.requests
    # A grpc-timeout travels in coarse units, rounded up: half a second covers them.
    assert before_ns < arrived.deadline_ns <= time.monotonic_ns() + 50_500_000_000


async def test_callers_that_leave_at_their_deadline_are_no_errors_of_ours(caplog):
    """If their deadline and our refusal coincide, grpcio cannot send the refusal any more."""
    async with serving() as gateway, connected(gateway) as channel:
        gateway.inference.gate.clear()
        calls = [stub(channel).ModelInfer(request(), timeout=0.05) for _ in range(500)]
        assert {await call.code() for call in calls} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_a_cancelled_call_is_cancelled_in_the_engine_and_disturbs_nobody():
    async with serving() as gateway, connected(gateway) as channel:
        inference = gateway.inference
        inference.gate.clear()
        leaver, stayer = (stub(channel).ModelInfer(request()) for _ in range(2))
        await inference.until(lambda: len(inference.requests) == 2)
        leaver.cancel()
        await inference.until(lambda: inference.cancelled == 1)
        inference.gate.set()
        assert (await stayer).outputs[0].name == "y"
        assert inference.cancelled == 1


async def test_calls_beyond_the_bound_are_unavailable_at_once():
    async with serving(settings=GrpcSettings(max_concurrent_calls=2)) as gateway, connected(gateway) as channel:
        inference = gateway.inference
        inference.gate.clear()
        held = [asyncio.ensure_future(_result(stub(channel).ModelInfer(request()))) for _ in range(2)]
        await inference.until(lambda: len(inference.requests) == 2)
        error = await refused(stub(channel).ModelInfer(request()))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        assert "[grpc] max_concurrent_calls" in error.details()
        assert dict(error.trailing_metadata())["grpc-retry-pushback-ms"] == "100"
        gateway.inference.gate.set()
        assert len(await asyncio.gather(*held)) == 2
        assert (await stub(channel).ModelInfer(request())).outputs[0].name == "y"


async def test_calls_whose_messages_come_late_pass_no_bound():
    async with serving(settings=GrpcSettings(max_concurrent_calls=2)) as gateway, connected(gateway) as channel:
        gateway.inference.gate.clear()
        admitted = asyncio.Event()

        async def late():
            await admitted.wait()
            yield request().SerializeToString()

        calls = [channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")(late()) for _ in range(9)]
        codes = [asyncio.ensure_future(call.code()) for call in calls]
        for refused_call in asyncio.as_completed(codes):
            assert await refused_call is grpc.StatusCode.UNAVAILABLE
            if sum(code.done() for code in codes) == 7:
                break
        admitted.set()
        await gateway.inference.until(lambda: len(gateway.inference.requests) == 2)
        gateway.inference.gate.set()
        assert [await code for code in codes].count(grpc.StatusCode.OK) == 2


async def _result(call):
    return await call


@pytest.fixture
def traced():
    """Trace memory without the cyclic garbage collector, which may stay away for a thousand calls."""
    gc.disable()
    tracemalloc.start()
    yield tracemalloc
    tracemalloc.stop()
    gc.enable()


@pytest.mark.parametrize("raw", [bytes(4 * MIB), request(raw_input_contents=[bytes(4 * MIB)]).SerializeToString()])
async def test_refused_messages_leave_nothing_behind(traced, raw):
    async with serving() as gateway, connected(gateway) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        before, _ = traced.get_traced_memory()
        for _ in range(20):
            await refused(call(raw))
        after, _ = traced.get_traced_memory()
        assert after - before < SPARE_BYTES + 2 * len(raw)  # memory of earlier messages, which is used again
