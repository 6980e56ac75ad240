"""Server reflection as its own client drives it: a call made by a client that has no .proto file."""

import asyncio

import grpc
import grpc.aio
import pytest
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from gateway.common.domain.access import Security, read_tokens
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators.constants import settings_with
from tests.simulators.grpc_gateway import serving

pytestmark = pytest.mark.asyncio
SERVICE = "inference.GRPCInferenceService"
NAMES = [SERVICE, "grpc.health.v1.Health", *(f"grpc.reflection.{v}.ServerReflection" for v in ("v1", "v1alpha"))]
INFER = {
    "modelName": "identity_int32",
    "id": "from-json",
    "inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 2], "contents": {"intContents": [4, 5]}}],
}


def called(target, method, document):
    """Learn the method's messages, then call it, like `grpcurl -d DOCUMENT TARGET METHOD`."""
    with grpc.insecure_channel(target) as channel:
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        service, _, name = method.rpartition(".")
        found = pool.FindServiceByName(service).methods_by_name[name]
        sent, answer = (message_factory.GetMessageClass(kind) for kind in (found.input_type, found.output_type))
        call = channel.unary_unary(
            f"/{service}/{name}", request_serializer=sent.SerializeToString, response_deserializer=answer.FromString
        )
        reply = call(json_format.ParseDict(document, sent()), timeout=20)
        return json_format.MessageToDict(reply)


def listed(target):
    with grpc.insecure_channel(target) as channel:
        return ProtoReflectionDescriptorDatabase(channel).get_services()


async def test_a_model_is_asked_by_what_reflection_tells():
    async with serving() as gateway:
        reply = await asyncio.to_thread(called, gateway.target, f"{SERVICE}.ModelInfer", INFER)
    assert (reply["modelName"], reply["id"]) == ("identity_int32", "from-json")
    assert reply["outputs"] == [{"name": "y", "datatype": "INT32", "shape": ["1", "2"]}]
    assert gateway.inference.requests[0].inputs["x"].array.tolist() == [[4, 5]]


@pytest.mark.parametrize("method", ["grpc.health.v1.Health.Check", f"{SERVICE}.ServerLive"])
async def test_the_other_calls_too(method):
    async with serving() as gateway:
        reply = await asyncio.to_thread(called, gateway.target, method, {})
    assert reply in ({"status": "SERVING"}, {"live": True})


async def test_the_services_and_every_message_of_theirs():
    def explored(target):
        with grpc.insecure_channel(target) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            pool = descriptor_pool.DescriptorPool(database)
            services = [pool.FindServiceByName(name) for name in database.get_services()]
            return {
                f"{service.full_name}/{method.name}": len(method.input_type.fields)
                for service in services
                for method in service.methods
            }

    async with serving() as gateway:
        found = await asyncio.to_thread(explored, gateway.target)
        assert {f"/{name}" for name in found} == set(gateway.service.rpcs())
    assert found[f"{SERVICE}/ModelInfer"] == 7


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_an_error_is_in_band_and_the_stream_goes_on(version):
    request, response = (message(f"grpc.reflection.{version}.ServerReflection{end}") for end in ("Request", "Response"))
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stream = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )()
        await stream.write(request(host="h", file_containing_symbol="inference.Nothing"))
        assert (await stream.read()).error_response.error_code == 5
        await stream.write(request(host="h", list_services=""))
        assert [service.name for service in (await stream.read()).list_services_response.service] == NAMES
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_stream_that_asks_too_much_is_ended():
    settings = settings_with(GrpcSettings(), reflection_requests=1)
    async with serving(settings=settings) as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert len((await stream.read()).list_services_response.service) == 4
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert await stream.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await stream.details() == "1 questions were answered on this stream; open another for more"


async def test_an_idle_stream_does_not_hold_up_the_stop():
    async with serving() as gateway, grpc.aio.insecure_channel(gateway.target) as channel:
        stream = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()
        await stream.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        await stream.read()
        stopping = asyncio.ensure_future(gateway.frontend.stop(3600))
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        await stopping


async def test_turned_off_it_is_unknown_and_not_listed():
    async with serving(settings=GrpcSettings(reflection=False)) as gateway:
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(listed, gateway.target)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_it_needs_a_token_as_every_call_does():
    async with serving(security=Security(tokens=read_tokens("ann secret-of-ann\n", "tokens"))) as gateway:
        with pytest.raises(grpc.RpcError) as caught:
            await asyncio.to_thread(listed, gateway.target)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
