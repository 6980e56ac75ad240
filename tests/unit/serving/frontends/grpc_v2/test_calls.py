"""Facts that a transport reports of its callers."""

import asyncio

import pytest

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.frontends.grpc_v2.calls import CallInfo, unexpected
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.regions import Regions
from gateway.serving.frontends.settings import SharedMemorySettings
from tests.simulators.inference import SimulatedInference


def test_callers_elsewhere_register_no_shared_memory():
    inference = SimulatedInference()
    regions = Regions(SharedMemorySettings(allowed=True, over_tcp=True))
    service = InferenceService(inference, inference, inference, GrpcSettings(), regions)
    rpc = service.rpcs()["/inference.GRPCInferenceService/SystemSharedMemoryRegister"]
    with pytest.raises(RequestError, match="only callers on this device") as caught:
        asyncio.run(rpc.answer(rpc.request(name="r", key="/r", byte_size=8), CallInfo("ann", local=False)))
    assert caught.value.fault is Fault.DENIED


def test_a_lack_of_memory_is_too_large_and_logged_alike_each_time(caplog):
    refused = [unexpected(MemoryError(), "/inference.GRPCInferenceService/ModelInfer") for _ in range(2)]
    assert {error.fault for error in refused} == {Fault.TOO_LARGE}
    assert len({record.getMessage() for record in caplog.records}) == 1
    assert not any(record.exc_info for record in caplog.records)
