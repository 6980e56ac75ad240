"""Callers that cancel, hang up or vanish in the middle of a batch: the others of the batch get their answers."""

import json
import socket
import threading

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.simulators.daemon import golden
from tests.simulators.hammer import hammering

BIG_ROWS = 1024


def infer(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer


@pytest.fixture
def asked():
    """Return a request that takes the model a while."""
    rows = np.repeat(golden("activity", 1).rows, BIG_ROWS, axis=0)
    question = service_pb2.ModelInferRequest(model_name="activity", raw_input_contents=[rows.tobytes()])
    question.inputs.add(name="motion", datatype="FP32", shape=rows.shape)
    return question


def drops(gateway):
    """Return the number of cancelled requests on the metrics page."""
    host, port = gateway.http.split(":")
    with socket.create_connection((host, int(port))) as one:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = b"".join(iter(lambda: one.recv(65536), b"")).decode()
    lines = [line for line in page.splitlines() if "drops_total" in line and 'reason="cancelled"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def test_cancelled_calls_leave_the_others_their_answers(gateway, asked):
    before = drops(gateway)
    with hammering(gateway, "activity") as hammer, grpc.insecure_channel(gateway.grpc) as channel:
        for _ in range(5):
            calls = [infer(channel).future(asked) for _ in range(6)]
            for call in calls[::2]:
                call.cancel()
            assert [call.result().outputs[0].shape[0] for call in calls[1::2]] == [BIG_ROWS] * 3
        hammer.wait_answers()
    assert hammer.failures == []
    assert drops(gateway) >= before


def test_a_client_that_vanishes_over_http_is_forgotten(gateway, asked):
    """Sent whole, never read: the connection is reset while the batch runs."""
    raw = asked.raw_input_contents[0]
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "motion",
                    "datatype": "FP32",
                    "shape": list(asked.inputs[0].shape),
                    "parameters": {"binary_data_size": len(raw)},
                }
            ]
        }
    ).encode()
    text = (
        f"POST /v2/models/activity/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Inference-Header-Content-Length: {len(head)}\r\n"
        f"Content-Length: {len(head) + len(raw)}\r\n\r\n"
    ).encode()
    host, port = gateway.http.split(":")
    with hammering(gateway, "activity") as hammer:
        for _ in range(5):
            with socket.create_connection((host, int(port))) as one:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                one.sendall(text + head + raw)
        hammer.wait_answers()
    assert hammer.failures == []


def test_a_channel_closed_in_the_middle_of_a_stream(gateway, asked):
    with hammering(gateway, "activity") as hammer:
        for _ in range(3):
            begun = threading.Event()

            def requests(begun=begun):
                begun.set()
                yield from [asked] * 4

            channel = grpc.insecure_channel(gateway.grpc)
            answers = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(requests())
            assert begun.wait(10)
            channel.close()
            with pytest.raises(grpc.RpcError):
                list(answers)
        hammer.wait_answers()
    assert hammer.failures == []


def test_nothing_is_left_of_them(gateway):
    with triton.InferenceServerClient(gateway.grpc) as client:
        (line,) = client.get_inference_statistics("activity").model_stats
        assert client.is_server_ready()
    assert line.inference_count > 0
    assert not [one for one in gateway.lines() if one["level"] in {"error", "critical"}]
    host, port = gateway.http.split(":")
    with socket.create_connection((host, int(port))) as one:
        one.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        page = b"".join(iter(lambda: one.recv(65536), b"")).decode()
    assert 'edge_gateway_queued{model="activity",version="1"} 0.0' in page
