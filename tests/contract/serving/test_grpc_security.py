"""Callers of the gRPC servers: which are admitted, and with which identity."""

import contextlib
import socket

import grpc
import grpc.aio
import numpy as np
import pytest
import tritonclient.grpc.aio as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from gateway.common.domain.access import Address, Security, read_tokens
from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators.authority import Authority
from tests.simulators.grpc_gateway import LOOPBACK, Gateway, serving
from tests.simulators.inference import SimulatedInference

pytestmark = pytest.mark.asyncio
AUTHORITY = Authority()
SERVER = AUTHORITY.issue("localhost")
TOKENS = read_tokens("ann secret-of-ann\nben secret-of-ben\n", "tokens")
TLS = Security(*SERVER)
MUTUAL = Security(*SERVER, client_ca=AUTHORITY.pem)


def localhost(gateway):
    return f"localhost:{gateway.addresses[0].port}"


def secure(gateway, key=None, certificate=None):
    credentials = grpc.ssl_channel_credentials(AUTHORITY.pem, key, certificate)
    return grpc.aio.secure_channel(localhost(gateway), credentials)


def stub(channel):
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


async def infer(channel, **options):
    sent = service_pb2.ModelInferRequest(
        model_name="identity_fp32",
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 1]}],
        raw_input_contents=[np.float32(1).tobytes()],
    )
    return await stub(channel).ModelInfer(sent, **options)


async def test_tls():
    async with serving(security=TLS) as gateway:
        async with secure(gateway) as channel:
            await infer(channel)
        assert gateway.inference.requests[0].caller == "127.0.0.1"
        async with grpc.aio.insecure_channel(gateway.target) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await infer(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_tritonclient_over_tls(tmp_path):
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.pem)
    async with serving(security=TLS) as gateway:
        ca = str(tmp_path / "ca.pem")
        async with triton.InferenceServerClient(localhost(gateway), ssl=True, root_certificates=ca) as client:
            assert await client.is_server_live()


@pytest.mark.parametrize(("name", "caller"), [("camera-7", "camera-7"), ("", "localhost")])
async def test_mutual_tls_names_the_caller_by_its_certificate(name, caller):
    certificate, key = AUTHORITY.issue(name)
    async with serving(security=MUTUAL) as gateway, secure(gateway, key, certificate) as channel:
        await infer(channel)
        assert gateway.inference.requests[0].caller == caller


async def test_mutual_tls_refuses_whom_it_does_not_know():
    stranger = Authority().issue("camera-7")
    async with serving(security=MUTUAL) as gateway:
        for certificate, key in ((None, None), stranger):
            async with secure(gateway, key, certificate) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await infer(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert gateway.inference.requests == []


async def test_a_token_names_its_caller():
    async with serving(security=Security(tokens=TOKENS)) as gateway:
        async with grpc.aio.insecure_channel(gateway.target) as channel:
            for secret in ("secret-of-ann", "secret-of-ben"):
                await infer(channel, metadata=(("authorization", f"Bearer {secret}"),))
        assert [request.caller for request in gateway.inference.requests] == ["ann", "ben"]


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ((), "a token is required: send 'Authorization: Bearer TOKEN' (EG-501)"),
        ((("authorization", "Basic c2VjcmV0"),), "a token is required: send 'Authorization: Bearer TOKEN' (EG-501)"),
        ((("authorization", "Bearer wrong"),), "unknown token; ask the operator for one of tokens_file (EG-502)"),
    ],
)
async def test_without_the_right_token_nothing_is_answered(metadata, text):
    async with serving(security=Security(tokens=TOKENS)) as gateway:
        async with grpc.aio.insecure_channel(gateway.target) as channel:
            live = stub(channel).ServerLive(service_pb2.ServerLiveRequest(), metadata=metadata)
            for call in (infer(channel, metadata=metadata), live):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.UNAUTHENTICATED, text)
            stream = stub(channel).ModelStreamInfer(metadata=metadata)
            assert await stream.code() is grpc.StatusCode.UNAUTHENTICATED
        assert gateway.inference.requests == []


async def test_a_strangers_message_is_refused_before_it_is_parsed():
    security = Security(tokens=TOKENS)
    async with serving(security=security) as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff\xff")
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def refused_start(security=None, addresses=(LOOPBACK,)):
    gateway = Gateway(SimulatedInference(), GrpcSettings(), security or Security())
    with pytest.raises(ConfigurationError) as caught:
        await gateway.frontend.start(addresses)
    return str(caught.value)


async def test_a_certificate_that_is_none():
    assert "certificate and key cannot be used" in await refused_start(Security(b"nonsense", b"nonsense"))


async def test_a_key_of_another_certificate():
    other = AUTHORITY.issue("localhost")
    assert "they must be PEM, belong together" in await refused_start(Security(SERVER[0], other[1]))


async def test_a_port_in_use_is_named_and_nothing_stays_open(tmp_path):
    async with serving() as gateway:
        async with serving() as other:
            free = other.addresses[0]
        taken, unix = gateway.addresses[0], Address(path=str(tmp_path / "grpc.sock"))
        text = await refused_start(addresses=[free, unix, taken])
        assert not (tmp_path / "grpc.sock").exists()
        async with serving(addresses=[free]) as again:
            assert again.addresses == [free]
    assert text == (
        f"grpc.listen: cannot listen on {taken}; it is in use: stop what listens there, or choose another address "
        "(EG-201)"
    )


async def test_a_unix_socket_in_use(tmp_path):
    address = Address(path=str(tmp_path / "grpc.sock"))
    async with serving(addresses=[address]) as gateway:
        assert "it is in use: stop what listens there" in await refused_start(addresses=[address])
        async with grpc.aio.insecure_channel(gateway.target) as channel:
            await infer(channel)


async def test_a_dead_servers_socket_is_replaced(tmp_path):
    path = tmp_path / "grpc.sock"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    address = Address(path=str(path))
    async with serving(addresses=[address]) as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        await infer(channel)


@pytest.mark.parametrize(("name", "text"), [("file", "exists and is no socket"), ("no/sock", "does not exist")])
async def test_paths_that_cannot_be_a_socket(tmp_path, name, text):
    (tmp_path / "file").write_text("precious")
    assert text in await refused_start(addresses=[Address(path=str(tmp_path / name))])
    assert (tmp_path / "file").read_text() == "precious"
