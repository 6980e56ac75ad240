"""The gateway's own HTTP/2 and grpcio's, asked the same: the same bytes, status, details and metadata come back."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from tests.simulators.daemon import COMMAND, golden, running
from tests.simulators.examples import examples
from tests.system import grpcio_daemon

V2 = "/inference.GRPCInferenceService"
INFER, STREAM = f"{V2}/ModelInfer", f"{V2}/ModelStreamInfer"
LONG_S = 30.0
DIGITS = golden("meter-reader", 8)


def question(model="meter-reader", rows=1, **fields):
    values = DIGITS.rows[:rows]
    inputs = [{"name": DIGITS.name, "datatype": "FP32", "shape": values.shape}]
    asked = {"model_name": model, "inputs": inputs, "raw_input_contents": [values.tobytes()], **fields}
    return service_pb2.ModelInferRequest(**asked)


def with_parameter(name, **value):
    asked = question()
    asked.parameters[name].MergeFrom(service_pb2.InferParameter(**value))
    return asked


def contents(**kinds):
    tensor = {"name": DIGITS.name, "datatype": "FP32", "shape": [1, 1, 8, 8], "contents": kinds}
    return question(inputs=[tensor], raw_input_contents=[])


def wanting(*names, count=0):
    outputs = [service_pb2.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names]
    for output in outputs if count else ():
        output.parameters["classification"].int64_param = count
    return question(rows=2, outputs=outputs)


def image(content):
    raw = len(content).to_bytes(4, "little") + content
    return question(inputs=[{"name": "image", "datatype": "BYTES", "shape": [1]}], raw_input_contents=[raw])


INFERENCES = {
    "one row": question(),
    "eight rows": question(rows=8),
    "id": question(id="a"),
    "another id": question(id="another id, ünïcode"),
    "version": question(model_version="1"),
    "no such version": question(model_version="2"),
    "no such model": question("nobody"),
    "a name of letters beyond ASCII": question("grüß\n100%"),
    "no name": question(""),
    "a long name": question("n" * 3000),
    "typed contents": contents(fp32_contents=DIGITS.rows[0].ravel()),
    "typed contents of another type": contents(int64_contents=[1] * 64),
    "too few contents": contents(fp32_contents=[1.0]),
    "no contents": contents(),
    "both kinds of contents": question(
        inputs=[{"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8], "contents": {"fp32_contents": [1.0]}}]
    ),
    "raw too short": question(raw_input_contents=[bytes(4)]),
    "raw too many": question(raw_input_contents=[bytes(256)] * 2),
    "raw missing": question(raw_input_contents=[]),
    "input of another name": question(inputs=[{"name": "picture", "datatype": "FP32", "shape": [1, 1, 8, 8]}]),
    "input of another type": question(inputs=[{"name": "image", "datatype": "INT32", "shape": [1, 1, 8, 8]}]),
    "input of no type": question(inputs=[{"name": "image", "datatype": "FP33", "shape": [1, 1, 8, 8]}]),
    "input of another shape": question(inputs=[{"name": "image", "datatype": "FP32", "shape": [64]}]),
    "a negative shape": question(inputs=[{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]),
    "a huge shape": question(inputs=[{"name": "image", "datatype": "FP32", "shape": [2**62, 1, 8, 8]}]),
    "no rows": question(
        inputs=[{"name": "image", "datatype": "FP32", "shape": [0, 1, 8, 8]}], raw_input_contents=[b""]
    ),
    "not a number": question(raw_input_contents=[np.full(64, np.nan, "<f4").tobytes()]),
    "no inputs": question(inputs=[], raw_input_contents=[]),
    "an output": wanting("scores"),
    "an output twice": wanting("scores", "scores"),
    "an output that is none": wanting("nothing"),
    "classes": wanting("scores", count=3),
    "too many classes": wanting("scores", count=30),
    "bytes that are no image": image(b"\x89PNG nonsense"),
    "priority": with_parameter("priority", uint64_param=1),
    "a priority of text": with_parameter("priority", string_param="high"),
    "timeout": with_parameter("timeout", int64_param=30_000_000),
    "a timeout of text": with_parameter("timeout", string_param="soon"),
    "a sequence": with_parameter("sequence_id", string_param="camera-7"),
    "a parameter nobody knows": with_parameter("colour", string_param="red"),
    "an empty parameter": with_parameter("colour"),
    "nothing at all": service_pb2.ModelInferRequest(),
}
OTHERS = {
    "live": (f"{V2}/ServerLive", service_pb2.ServerLiveRequest()),
    "ready": (f"{V2}/ServerReady", service_pb2.ServerReadyRequest()),
    "model ready": (f"{V2}/ModelReady", service_pb2.ModelReadyRequest(name="activity")),
    "model not ready": (f"{V2}/ModelReady", service_pb2.ModelReadyRequest(name="nobody")),
    "server": (f"{V2}/ServerMetadata", service_pb2.ServerMetadataRequest()),
    "metadata": (f"{V2}/ModelMetadata", service_pb2.ModelMetadataRequest(name="activity")),
    "metadata of nobody": (f"{V2}/ModelMetadata", service_pb2.ModelMetadataRequest(name="nobody")),
    "config of nobody": (f"{V2}/ModelConfig", service_pb2.ModelConfigRequest(name="meter-reader", version="7")),
    "statistics of nobody": (f"{V2}/ModelStatistics", service_pb2.ModelStatisticsRequest(name="nobody")),
    "index": (f"{V2}/RepositoryIndex", service_pb2.RepositoryIndexRequest(ready=True)),
    "another repository": (f"{V2}/RepositoryIndex", service_pb2.RepositoryIndexRequest(repository_name="x")),
    "load": (f"{V2}/RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name="activity")),
    "unload": (f"{V2}/RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name="activity")),
    "regions": (f"{V2}/SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest()),
    "a region": (f"{V2}/SystemSharedMemoryStatus", service_pb2.SystemSharedMemoryStatusRequest(name="r")),
    "register": (
        f"{V2}/SystemSharedMemoryRegister",
        service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/r", byte_size=8),
    ),
    "CUDA regions": (f"{V2}/CudaSharedMemoryStatus", service_pb2.CudaSharedMemoryStatusRequest()),
    "trace": (f"{V2}/TraceSetting", service_pb2.TraceSettingRequest()),
    "log": (f"{V2}/LogSettings", service_pb2.LogSettingsRequest()),
    "health": ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest()),
    "health of a model": ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service="activity")),
    "health of nobody": ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service="nobody")),
    "an unknown method": (f"{V2}/Nothing", service_pb2.ServerLiveRequest()),
    "an unknown service": ("/nothing.Nothing/Nothing", service_pb2.ServerLiveRequest()),
}
STREAMS = {
    "none": [],
    "one": [question(id="1")],
    "a bad one between": [question(id="1"), question("nobody", id="2"), question(id="3")],
    "final": [with_parameter("triton_enable_empty_final_response", bool_param=True)],
}


@pytest.fixture(scope="module")
def channels(tmp_path_factory, state):
    """Yield one channel to each server."""
    with ExitStack() as stack:
        opened = []
        for command in (COMMAND, grpcio_daemon.COMMAND):
            folder = tmp_path_factory.mktemp("daemon")
            daemon = stack.enter_context(running(folder, state=state, http=["off"], command=command))
            opened.append(stack.enter_context(grpc.insecure_channel(daemon.grpc)))
        yield opened


def unary(channel, path, raw, **options):
    """Return what comes back: code, details, bytes, both kinds of metadata."""
    call = channel.unary_unary(path).future(raw, timeout=LONG_S, **options)
    reply = call.result() if call.code() is grpc.StatusCode.OK else b""
    return call.code(), call.details(), reply, call.initial_metadata(), call.trailing_metadata()


def stream(channel, path, raw):
    call = channel.stream_stream(path)(iter(raw), timeout=LONG_S)
    replies = []
    with suppress(grpc.RpcError):
        replies.extend(call)
    replies.sort()  # they come as they are done
    return call.code(), call.details(), replies, call.initial_metadata(), call.trailing_metadata()


def alike(ask, channels, *what, **options):
    ours, theirs = (ask(channel, *what, **options) for channel in channels)
    assert ours == theirs
    return ours


@pytest.mark.parametrize("name", INFERENCES)
def test_inference(channels, name):
    """Three times: what the gateway remembers of a request must not change its answer."""
    heard = [alike(unary, channels, INFER, INFERENCES[name].SerializeToString()) for _ in range(3)]
    assert heard[0] == heard[1] == heard[2]


@pytest.mark.parametrize("name", OTHERS)
def test_other_calls(channels, name):
    path, asked = OTHERS[name]
    code, details, *_ = ours = unary(channels[0], path, asked.SerializeToString())
    theirs = unary(channels[1], path, asked.SerializeToString())
    if code is grpc.StatusCode.UNIMPLEMENTED and theirs[1] == "Method not found!":
        assert theirs[0] is code  # the transport's own words
    else:
        assert ours == theirs
    assert details or code is grpc.StatusCode.OK


def test_config(channels):
    """Its maps have no order on the wire, and each daemon measured for itself."""
    asked = service_pb2.ModelConfigRequest(name="meter-reader", version="1").SerializeToString()
    ours, theirs = (
        service_pb2.ModelConfigResponse.FromString(unary(channel, f"{V2}/ModelConfig", asked)[2]).config
        for channel in channels
    )
    assert ours.parameters.pop("reason").string_value
    assert theirs.parameters.pop("reason").string_value
    assert ours == theirs


@pytest.mark.parametrize("name", STREAMS)
def test_streams(channels, name):
    alike(stream, channels, STREAM, [asked.SerializeToString() for asked in STREAMS[name]])


@pytest.mark.parametrize("name", INFERENCES)
def test_a_stream_answers_as_a_call_does(channels, name):
    as_streamed(channels[0], INFERENCES[name].SerializeToString())


def as_streamed(channel, raw):
    """Check that a stream answers like a call.

    A call's bytes are read and written by hand, a stream's messages by protobuf.
    """
    code, details, reply, *_ = unary(channel, INFER, raw)
    ended, why, replies, *_ = stream(channel, STREAM, [raw])
    if ended is not grpc.StatusCode.OK:  # what is no message ends a stream
        assert (code, details) == (ended, why)
        return
    (streamed,) = map(service_pb2.ModelStreamInferResponse.FromString, replies)
    assert streamed.error_message == details
    if code is grpc.StatusCode.OK:
        assert streamed.infer_response == service_pb2.ModelInferResponse.FromString(reply)


@pytest.mark.parametrize("path", [INFER, f"{V2}/ModelReady", "/grpc.health.v1.Health/Check"])
@pytest.mark.parametrize("raw", [b"\xff\xff\xff", b"\n", b"\n\x05abc", bytes(64)])
def test_bytes_that_are_no_message(channels, path, raw):
    alike(unary, channels, path, raw)
    alike(stream, channels, STREAM, [raw])


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(channels, version):
    request = reflection_pb2.ServerReflectionRequest
    asked = [
        request(list_services=""),
        request(file_containing_symbol="inference.ModelInferRequest"),
        request(file_containing_symbol="nothing"),
        request(),
    ]
    path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    alike(stream, channels, path, [one.SerializeToString() for one in asked])


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed(channels, compression):
    for name in ("one row", "eight rows", "no such model"):
        alike(unary, channels, INFER, INFERENCES[name].SerializeToString(), compression=compression)


@pytest.mark.parametrize("size", [0, 1, 65 * 2**20])
def test_sizes(channels, size):
    """The largest is refused by the transport, in its own words."""
    codes = {unary(channel, INFER, bytes(size))[0] for channel in channels}
    assert len(codes) == 1


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_requests(channels, data):
    """A right request of which some bytes are changed, dropped or inserted."""
    raw = bytearray(INFERENCES[data.draw(st.sampled_from(["one row", "id", "typed contents"]))].SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(raw) - 1, 60)))
        kind = data.draw(st.sampled_from("cdi"))
        if kind == "c":
            raw[place] = data.draw(st.integers(0, 255))
        elif kind == "d":
            del raw[place]
        else:
            raw.insert(place, data.draw(st.integers(0, 255)))
    alike(unary, channels, INFER, bytes(raw))
    as_streamed(channels[0], bytes(raw))
