"""Facts that a transport reports of its callers."""

import asyncio

import pytest

from gateway.domain.errors import Fault, RequestError
from gateway.frontends.grpc_v2.calls import CallInfo, is_local, peer_address, unexpected
from gateway.frontends.grpc_v2.service.inference import InferenceService
from gateway.frontends.grpc_v2.settings import GrpcSettings
from gateway.frontends.regions import Regions
from gateway.frontends.settings import SharedMemorySettings
from tests.simulators.inference import SimulatedInference


@pytest.mark.parametrize(
    ("peer", "address", "local"),
    [
        ("ipv4:127.0.0.1:4242", "127.0.0.1", True),
        ("ipv4:127.9.9.9:4242", "127.9.9.9", True),
        ("ipv6:%5B::1%5D:4242", "::1", True),
        ("unix:", "unix", True),
        ("unix:/run/g.sock", "unix", True),
        ("unix-abstract:g", "unix-abstract", True),
        ("ipv4:192.168.1.7:4242", "192.168.1.7", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:4242", "fe80::1%eth0", False),
        ("ipv6:%5B::ffff:127.0.0.1%5D:4242", "::ffff:127.0.0.1", True),
        ("", "", False),
    ],
)
def test_where_a_caller_is(peer, address, local):
    assert (peer_address(peer), is_local(peer)) == (address, local)


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
