"""grpcio's blocking client on a real daemon: deadlines, cancellation, compression, large messages, who may call."""

from __future__ import annotations

import contextlib
import socket
import threading
from dataclasses import replace

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.manifest import ModelManifest, TensorSpec
from gateway.common.domain.tensor import Datatype
from tests.simulators import models
from tests.simulators.daemon import ANYWHERE, QUIET, SHORT_TRIALS, Daemon, golden, running

MIB = 1024 * 1024
WIDE = ModelManifest(
    "wide",
    "1",
    (TensorSpec("x", Datatype.FP32, (-1, MIB // 4)),),
    (TensorSpec("y", Datatype.FP32, (-1, MIB // 4)),),
    (),
)
"""y = x, a MiB a row: the only one here whose answers are large."""
SECRET = "correct-horse"
LONG_S = 30.0
CODE = grpc.StatusCode


def stub(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


def digits(rows=1, **fields):
    wanted = golden("meter-reader", rows)
    asked = service_pb2.ModelInferRequest(
        model_name="meter-reader", raw_input_contents=[wanted.rows.tobytes()], **fields
    )
    asked.inputs.add(name=wanted.name, datatype="FP32", shape=wanted.rows.shape)
    return asked


def is_right(reply, rows=1):
    scores = np.frombuffer(reply.raw_output_contents[0], "<f4").reshape(rows, -1)
    return (scores.argmax(axis=1) == golden("meter-reader", rows).scores.argmax(axis=1)).all()


def heavy():
    """Return a request of 1024 rows, which take a model a while."""
    rows = np.repeat(golden("activity", 1).rows, 1024, axis=0)
    asked = service_pb2.ModelInferRequest(model_name="activity", raw_input_contents=[rows.tobytes()])
    asked.inputs.add(name="motion", datatype="FP32", shape=rows.shape)
    return asked


def wide(rows):
    values = np.random.default_rng(3).integers(0, 256, rows * MIB, np.uint8).tobytes()
    asked = service_pb2.ModelInferRequest(model_name="wide", raw_input_contents=[values])
    asked.inputs.add(name="x", datatype="FP32", shape=[rows, MIB // 4])
    return asked


@pytest.fixture(params=["tcp", "unix"])
def channel(request, served):
    options = {"grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1}
    with grpc.insecure_channel(served.addresses("grpc")[request.param == "unix"], list(options.items())) as channel:
        yield channel


def refused(call):
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value


# ---- calls ---------------------------------------------------------------------------------------------------------
def test_an_answer_and_its_metadata(channel):
    reply, call = stub(channel).ModelInfer.with_call(digits(3, id="7"), timeout=LONG_S)
    assert (reply.id, is_right(reply, 3)) == ("7", True)
    assert (call.code(), call.details(), call.trailing_metadata()) == (CODE.OK, "", ())


def test_a_refusal_and_its_metadata(channel):
    asked = service_pb2.ModelInferRequest(model_name="grüß 100%\t")
    error = refused(lambda: stub(channel).ModelInfer(asked, timeout=LONG_S))
    assert (error.code(), error.details()) == (CODE.NOT_FOUND, "Request for unknown model: 'grüß 100%\t' is not found")
    assert error.trailing_metadata() == ()


def test_an_unknown_method(channel):
    error = refused(lambda: channel.unary_unary("/inference.GRPCInferenceService/Nothing")(b"", timeout=LONG_S))
    assert error.code() is CODE.UNIMPLEMENTED


def test_metadata_of_the_callers_is_let_through(channel):
    metadata = [("x-camera", "front door"), ("x-camera", "again"), ("x-trace-bin", b"\0\xff"), ("traceparent", "00-ab")]
    assert is_right(stub(channel).ModelInfer(digits(), metadata=metadata, timeout=LONG_S))


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests(channel, compression):
    asked = digits(64)
    assert is_right(stub(channel).ModelInfer(asked, compression=compression, timeout=LONG_S), 64)
    replies = stub(channel).ModelStreamInfer(iter([asked] * 3), compression=compression, timeout=LONG_S)
    assert [bool(is_right(reply.infer_response, 64)) for reply in replies] == [True] * 3


# ---- deadlines and cancellation ------------------------------------------------------------------------------------
def test_a_deadline_that_has_passed(channel):
    """The request is heavy: grpcio rounds its microsecond up to a millisecond, in which a light one may be answered."""
    assert refused(lambda: stub(channel).ModelInfer(heavy(), timeout=1e-6)).code() is CODE.DEADLINE_EXCEEDED


def test_deadlines_that_pass_while_others_are_served(channel):
    """Forty heavy requests, 98 MB together, of 5 ms each: few are answered, the others too late."""
    calls = [stub(channel).ModelInfer.future(heavy(), timeout=0.005) for _ in range(40)]
    codes = {call.code() for call in calls}
    assert CODE.DEADLINE_EXCEEDED in codes
    assert codes <= {CODE.DEADLINE_EXCEEDED, CODE.OK}
    assert is_right(stub(channel).ModelInfer(digits(), timeout=LONG_S))


def test_calls_cancelled_at_once_and_on_the_way(channel):
    calls = [stub(channel).ModelInfer.future(heavy(), timeout=LONG_S) for _ in range(10)]
    for call in calls[::2]:
        call.cancel()
    assert {call.code() for call in calls[::2]} <= {CODE.CANCELLED, CODE.OK}
    assert {call.code() for call in calls[1::2]} == {CODE.OK}
    assert is_right(stub(channel).ModelInfer(digits(), timeout=LONG_S))


# ---- streams -------------------------------------------------------------------------------------------------------
def test_a_stream_that_is_half_closed_gets_all_its_answers(channel):
    asked = [digits(id=f"{number}") for number in range(50)]
    call = stub(channel).ModelStreamInfer(iter(asked), timeout=LONG_S)
    assert {reply.infer_response.id for reply in call} == {f"{number}" for number in range(50)}
    assert (call.code(), call.details()) == (CODE.OK, "")


def test_a_stream_of_nothing(channel):
    call = stub(channel).ModelStreamInfer(iter(()), timeout=LONG_S)
    assert (list(call), call.code()) == ([], CODE.OK)


def test_a_stream_that_is_left_early(channel):
    ended = threading.Event()

    def endless():
        while not ended.is_set():
            yield digits()

    call = stub(channel).ModelStreamInfer(endless(), timeout=LONG_S)
    assert is_right(next(call).infer_response)
    call.cancel()
    ended.set()
    assert call.code() is CODE.CANCELLED
    assert is_right(stub(channel).ModelInfer(digits(), timeout=LONG_S))


def test_a_stream_whose_deadline_passes(channel):
    never = threading.Event()

    def one_and_no_more():
        yield digits()
        never.wait(LONG_S)

    call = stub(channel).ModelStreamInfer(one_and_no_more(), timeout=0.3)
    assert is_right(next(call).infer_response)
    assert refused(lambda: next(call)).code() is CODE.DEADLINE_EXCEEDED
    never.set()


# ---- large messages ------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def wide_gateway(tmp_path_factory):
    folder = tmp_path_factory.mktemp("w")
    library = folder / "models"
    models.write_release(library, replace(WIDE), "onnx")
    listens = [ANYWHERE, f"unix:{folder}/g.sock"]
    with running(folder / "gateway", models=library, grpc=listens, http=["off"]) as daemon:
        yield daemon


@pytest.fixture(params=["tcp", "unix"])
def wide_channel(request, wide_gateway):
    options = {"grpc.max_receive_message_length": -1, "grpc.max_send_message_length": -1}
    target = wide_gateway.addresses("grpc")[request.param == "unix"]
    with grpc.insecure_channel(target, list(options.items())) as channel:
        yield channel


def test_ten_megabytes_up_and_down(wide_channel):
    asked = wide(10)
    reply = stub(wide_channel).ModelInfer(asked, timeout=LONG_S)
    assert reply.raw_output_contents[0] == asked.raw_input_contents[0]


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_several_at_once_and_compressed(wide_channel, compression):
    asked = wide(4)
    calls = [stub(wide_channel).ModelInfer.future(asked, compression=compression, timeout=LONG_S) for _ in range(5)]
    assert [call.result().raw_output_contents[0] == asked.raw_input_contents[0] for call in calls] == [True] * 5


def test_large_messages_in_a_stream(wide_channel):
    asked = wide(3)
    replies = stub(wide_channel).ModelStreamInfer(iter([asked] * 4), timeout=LONG_S)
    same = [reply.infer_response.raw_output_contents[0] == asked.raw_input_contents[0] for reply in replies]
    assert same == [True] * 4


def test_a_message_beyond_the_bound(wide_channel):
    error = refused(lambda: stub(wide_channel).ModelInfer(wide(65), timeout=LONG_S))
    assert error.code() is CODE.RESOURCE_EXHAUSTED
    assert stub(wide_channel).ServerReady(service_pb2.ServerReadyRequest(), timeout=LONG_S).ready


def test_an_answer_that_the_client_does_not_take(wide_gateway):
    with grpc.insecure_channel(wide_gateway.grpc, [("grpc.max_receive_message_length", MIB)]) as channel:
        assert refused(lambda: stub(channel).ModelInfer(wide(2), timeout=LONG_S)).code() is CODE.RESOURCE_EXHAUSTED
        assert stub(channel).ServerReady(service_pb2.ServerReadyRequest(), timeout=LONG_S).ready


# ---- who may call --------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def guarded(tmp_path_factory, state, authority):
    """Yield a daemon with mutual TLS and tokens at once on TCP, tokens on the UNIX socket."""
    folder = tmp_path_factory.mktemp("g")
    (folder / "tokens").write_text(f"bench {SECRET}\n")
    files = {"cert": "localhost.pem", "key": "localhost.key", "client_ca": "ca.pem"}
    tls = "\n".join(f'{key} = "{authority}/{name}"' for key, name in files.items())
    config = f'{QUIET}{SHORT_TRIALS}[auth]\ntokens_file = "{folder}/tokens"\n[tls]\n{tls}\n'
    listens = [ANYWHERE, f"unix:{folder}/g.sock"]
    with running(folder, state=state, config=config, grpc=listens, http=["off"]) as daemon:
        yield daemon


def presenting(authority, name, token):
    """Return what a client shows: a certificate ("": none), and a token with each call."""
    pair = [(authority / f"{name}.{end}").read_bytes() for end in ("key", "pem")] if name else [None, None]
    credentials = grpc.ssl_channel_credentials((authority / "ca.pem").read_bytes(), *pair)
    return grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))


@pytest.mark.parametrize(
    ("name", "token", "code"),
    [
        ("client", SECRET, CODE.OK),
        ("client", "wrong", CODE.UNAUTHENTICATED),
        ("stranger", SECRET, CODE.UNAVAILABLE),
        ("", SECRET, CODE.UNAVAILABLE),
    ],
)
def test_certificate_and_token(guarded, authority, name, token, code):
    target = f"localhost:{guarded.grpc.rpartition(':')[2]}"
    with grpc.secure_channel(target, presenting(authority, name, token)) as channel:
        call = stub(channel).ModelInfer.future(digits(), timeout=LONG_S)
        assert call.code() is code
        if code is not CODE.OK:
            stream = stub(channel).ModelStreamInfer(iter([digits()]), timeout=LONG_S)
            assert stream.code() is code


def test_a_token_on_a_unix_socket(guarded):
    with grpc.insecure_channel(guarded.addresses("grpc")[1]) as channel:
        metadata = [("authorization", f"Bearer {SECRET}")]
        assert is_right(stub(channel).ModelInfer(digits(), metadata=metadata, timeout=LONG_S))
        error = refused(lambda: stub(channel).ModelInfer(digits(), timeout=LONG_S))
    assert error.code() is CODE.UNAUTHENTICATED
    assert error.details() == "a token is required: send 'Authorization: Bearer TOKEN' (EG-501)"


# ---- the life of a connection --------------------------------------------------------------------------------------
def test_a_call_waits_for_the_gateway_to_come_back(tmp_path, state):
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    daemon = Daemon(tmp_path, state=state, grpc=[address], http=["off"]).start()
    with grpc.insecure_channel(address, [("grpc.max_reconnect_backoff_ms", 100)]) as channel:
        assert is_right(stub(channel).ModelInfer(digits(), timeout=LONG_S))
        assert daemon.stop() == 0
        assert refused(lambda: stub(channel).ModelInfer(digits(), timeout=LONG_S)).code() is CODE.UNAVAILABLE
        asked = service_pb2.ServerLiveRequest()
        waiting = [stub(channel).ServerLive.future(asked, wait_for_ready=True, timeout=LONG_S) for _ in range(10)]
        daemon.start()
        assert [call.result().live for call in waiting] == [True] * 10
        assert is_right(stub(channel).ModelInfer(digits(), timeout=LONG_S))
        assert daemon.stop() == 0


PINGING = [
    ("grpc.keepalive_time_ms", 50),
    ("grpc.keepalive_timeout_ms", 5000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
]
"""A client that pings twenty times a second, on a connection of its own."""


def watched(channel):
    """Return a call that gets one message and then lasts."""
    call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=LONG_S)
    assert next(call).status == health_pb2.HealthCheckResponse.SERVING
    return call


def test_who_pings_too_often_is_sent_away(served):
    with grpc.insecure_channel(served.grpc, PINGING) as channel:
        error = refused(lambda: next(watched(channel)))
        assert error.code() is CODE.UNAVAILABLE
        assert "too_many_pings" in error.details() or "Too many pings" in error.details()


def test_pings_that_are_allowed_keep_the_connection(tmp_path, state):
    config = f"{QUIET}{SHORT_TRIALS}"
    config += "[grpc]\nkeepalive_ms = 50\nkeepalive_timeout_ms = 5000\n[grpc.http2]\nmin_ping_interval_ms = 1\n"
    seen = []
    with (
        running(tmp_path, state=state, config=config, http=["off"]) as daemon,
        grpc.insecure_channel(daemon.grpc, PINGING) as channel,
    ):
        channel.subscribe(seen.append)
        call = watched(channel)
        assert not _ends_within(call, 1.0)
        call.cancel()
        assert is_right(stub(channel).ModelInfer(digits(), timeout=LONG_S))
    assert seen.count(grpc.ChannelConnectivity.READY) == 1


def _ends_within(call, limit_s):
    ended = threading.Event()
    return not call.add_callback(ended.set) or ended.wait(limit_s)
