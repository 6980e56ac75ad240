"""Requests that wait for a run: each is answered from its own message, whose memory is counted while it waits."""

from __future__ import annotations

import asyncio
import gc
import threading
from dataclasses import replace

import grpc.aio
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.access import Security
from gateway.common.domain.manifest import SequenceBatching, StateTensors
from gateway.common.domain.tensor import Tensors
from gateway.serving.engine.settings import EngineSettings
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.server import GrpcServer
from gateway.serving.frontends.pools import Pools
from tests.simulators.constants import settings_with
from tests.simulators.engine_rig import Rig, X, Y, manifest, quick_rig
from tests.simulators.grpc_gateway import LOOPBACK, UNDIVIDED
from tests.simulators.mqtt_gateway import until

pytestmark = pytest.mark.asyncio
ASKED = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
COUNTED_BYTES = 128 * 1024
"""Smaller messages may come in one read. They are copied then, and count as calls."""
PAUSE_S = 0.1
"""Time in which a message is received completely, and waits."""


def question(width: int, value: float) -> service_pb2.ModelInferRequest:
    values = np.full(width, value, np.float32)
    return service_pb2.ModelInferRequest(
        model_name="m",
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1, width]}],
        raw_input_contents=[values.tobytes()],
    )


def value_of(answer: service_pb2.ModelInferResponse) -> float:
    return float(np.frombuffer(answer.raw_output_contents[0], np.float32)[0])


@pytest.mark.parametrize("width", [10_000, 100_000, 300_000])  # 40 KB; 400 KB and 1.2 MB in memory that is used again
async def test_waiting_messages_are_answered_from_their_own_memory_and_counted(width: int) -> None:
    gate, settings = threading.Event(), GrpcSettings()

    def run(inputs: Tensors) -> Tensors:
        gate.wait(20)
        return {"y": inputs["x"][:, -1:].copy()}

    rig = Rig(settings_with(EngineSettings(), inline_limit_us=0))  # all runs on the model's worker
    await rig.serve(manifest(inputs=(replace(X, shape=(-1, width)),), outputs=(Y,)))
    rig.session.run = run  # type: ignore[method-assign]
    service = InferenceService(rig.engine, rig.engine, rig.engine, settings, None, pools=Pools(UNDIVIDED))  # type: ignore[arg-type]
    server, memory = GrpcServer(service, settings, Security()), service.message_memory
    (address,) = await server.start([LOOPBACK])
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with (
        grpc.aio.insecure_channel(str(address), options) as one,
        grpc.aio.insecure_channel(str(address), options) as other,
    ):
        stubs = [service_pb2_grpc.GRPCInferenceServiceStub(channel) for channel in (one, other)]
        gate.set()
        for stub in stubs * 3:  # the first of its like is parsed
            await stub.ModelInfer(question(width, 0.0))
        gate.clear()
        calls = []
        for stub, value in zip(stubs * 3, ASKED, strict=True):
            calls.append(asyncio.ensure_future(stub.ModelInfer(question(width, value))))
            await asyncio.sleep(PAUSE_S)
        if width * 4 >= COUNTED_BYTES:
            assert memory.used_bytes >= len(ASKED) * width * 4
        gate.set()
        assert [value_of(await call) for call in calls] == ASKED
        await until(lambda: memory.used_bytes == 0)
    await server.stop(0)
    await rig.repository.close()


@pytest.mark.parametrize("has_sequences", [False, True])
@pytest.mark.parametrize("limit_us", [0, 10_000])  # on the model's worker, or joined with others as bytes
async def test_the_memory_of_an_answered_message_waits_for_no_search_for_garbage(
    limit_us: int, has_sequences: bool
) -> None:
    width, settings = 300_000, GrpcSettings()
    state, following = replace(X, name="state", shape=(-1, 1)), replace(Y, name="next", shape=(-1, 1))
    of = manifest(inputs=(replace(X, shape=(-1, width)),), outputs=(Y,))
    if has_sequences:
        inputs, outputs = (*of.inputs, state), (Y, following)
        of = manifest(inputs=inputs, outputs=outputs, sequence=SequenceBatching((StateTensors("state", "next"),)))
    rig = await quick_rig(of, inline_limit_us=limit_us)

    def run(inputs: Tensors) -> Tensors:
        made = {"y": inputs["x"][:, -1:].copy()}
        return made | ({"next": inputs["state"] + 1} if has_sequences else {})

    rig.session.run = run  # type: ignore[method-assign]
    service = InferenceService(rig.engine, rig.engine, rig.engine, settings, None, pools=Pools(UNDIVIDED))  # type: ignore[arg-type]
    server, memory = GrpcServer(service, settings, Security()), service.message_memory
    (address,) = await server.start([LOOPBACK])
    gc.disable()
    try:
        async with grpc.aio.insecure_channel(str(address)) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for value in ASKED:
                asked = question(width, value)
                if has_sequences:
                    asked.parameters["sequence_id"].string_param = "a"
                    asked.parameters["sequence_start"].bool_param = value == ASKED[0]
                assert value_of(await stub.ModelInfer(asked)) == value
                await until(lambda: memory.used_bytes == 0)
    finally:
        gc.enable()
        await server.stop(0)
        await rig.repository.close()
