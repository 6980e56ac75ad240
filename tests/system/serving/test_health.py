"""grpc.health.v1 as grpcio's own client and a load balancer ask it."""

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.simulators.daemon import running

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def health(gateway):
    with grpc.insecure_channel(gateway.grpc) as channel:
        yield health_pb2_grpc.HealthStub(channel)


@pytest.mark.parametrize("service", ["", "inference.GRPCInferenceService"])
def test_the_server_and_its_service_are_serving(health, service):
    assert health.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status == SERVING


def test_an_unknown_service_is_not_found(health):
    with pytest.raises(grpc.RpcError) as refused:
        health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=10)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_watcher_is_told_when_the_daemon_stops(tmp_path, state):
    with running(tmp_path, state=state, http=["off"]) as daemon, grpc.insecure_channel(daemon.grpc) as channel:
        watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        told = [next(watching).status]
        assert daemon.stop() == 0
        told.extend(answer.status for answer in watching)
    assert told == [SERVING, NOT_SERVING]
