"""Server reflection on messages: every kind of question, in both versions."""

import asyncio

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, text_format
from hypothesis import given
from hypothesis import strategies as st

from gateway.common.domain.errors import Fault, RequestError
from gateway.serving.frontends.grpc_v2.codec import protocol
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.service.reflection import ReflectionStream
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from tests.simulators.constants import settings_with
from tests.simulators.inference import SimulatedInference

SERVICES = (*protocol.SERVICES, *protocol.REFLECTION)
VERSIONS = ("v1", "v1alpha")
FILES = """
file { name: "base.proto" package: "shop"
  message_type { name: "Base" extension_range { start: 100 end: 200 } } }
file { name: "more.proto" package: "shop" dependency: "base.proto"
  extension { name: "colour" extendee: ".shop.Base" number: 120 type: TYPE_STRING label: LABEL_OPTIONAL }
  extension { name: "weight" extendee: ".shop.Base" number: 101 type: TYPE_INT32 label: LABEL_OPTIONAL } }
file { name: "top.proto" package: "shop" dependency: "more.proto" dependency: "base.proto"
  message_type { name: "Top"
    field { name: "base" number: 1 type: TYPE_MESSAGE type_name: ".shop.Base" label: LABEL_OPTIONAL } } }
"""
"""proto2, with extensions and imports, which the gateway's own files do not have."""


@pytest.fixture(params=VERSIONS)
def version(request):
    return request.param


def question(version, **fields):
    return protocol.message(f"grpc.reflection.{version}.ServerReflectionRequest")(host="here", **fields)


def stream(pool=None, **settings):
    return ReflectionStream(pool or protocol.pool(), SERVICES, settings_with(GrpcSettings(), **settings))


def ask(version, pool=None, **fields):
    asked = question(version, **fields)
    reply = asyncio.run(stream(pool).answer(asked))
    assert reply.DESCRIPTOR.full_name == f"grpc.reflection.{version}.ServerReflectionResponse"
    assert (reply.valid_host, reply.original_request) == ("here", asked)
    return reply


def files(reply):
    return [
        descriptor_pb2.FileDescriptorProto.FromString(raw).name
        for raw in reply.file_descriptor_response.file_descriptor_proto
    ]


@pytest.fixture(scope="module")
def shop():
    made = descriptor_pool.DescriptorPool()
    for file in text_format.Parse(FILES, descriptor_pb2.FileDescriptorSet()).file:
        made.AddSerializedFile(file.SerializeToString())
    return made


def test_the_services_offered_are_listed(version):
    listed = ask(version, list_services="*").list_services_response.service
    assert [service.name for service in listed] == [*SERVICES]


def test_a_file_by_its_name(version):
    assert files(ask(version, file_by_filename="health.proto")) == ["health.proto"]


@pytest.mark.parametrize(
    "symbol",
    [
        "inference.GRPCInferenceService",
        "inference.GRPCInferenceService.ModelInfer",
        "inference.ModelInferRequest",
        "inference.ModelInferRequest.id",
        "inference.ModelInferRequest.InferInputTensor",
        "inference.ModelInferRequest.ParametersEntry.key",
        "inference.InferParameter.parameter_choice",
        "inference.DataType",
        "inference.TYPE_FP32",
        "inference.ModelInput.FORMAT_NCHW",
    ],
)
def test_the_file_with_a_symbol(version, symbol):
    assert files(ask(version, file_containing_symbol=symbol)) == ["inference.proto"]


def test_what_a_file_imports_comes_with_it_once(version, shop):
    for asked in ({"file_by_filename": "top.proto"}, {"file_containing_symbol": "shop.Top.base"}):
        found = files(ask(version, shop, **asked))
        assert found[0] == "top.proto"
        assert sorted(found) == ["base.proto", "more.proto", "top.proto"]


def test_the_file_with_an_extension(version, shop):
    asked = {"containing_type": "shop.Base", "extension_number": 120}
    assert files(ask(version, shop, file_containing_extension=asked)) == ["more.proto", "base.proto"]
    assert files(ask(version, shop, file_containing_symbol="shop.colour")) == ["more.proto", "base.proto"]


def test_the_numbers_of_a_types_extensions(version, shop):
    reply = ask(version, shop, all_extension_numbers_of_type="shop.Base").all_extension_numbers_response
    assert (reply.base_type_name, list(reply.extension_number)) == ("shop.Base", [101, 120])
    none = ask(version, all_extension_numbers_of_type="inference.ModelInferRequest")
    assert none.WhichOneof("message_response") == "all_extension_numbers_response"
    assert not none.all_extension_numbers_response.extension_number


@pytest.mark.parametrize(
    "fields",
    [
        {"file_by_filename": "no.proto"},
        {"file_containing_symbol": "inference"},
        {"file_containing_symbol": ""},
        {"file_containing_symbol": "inference.GRPCInferenceService.Nothing"},
        {"file_containing_symbol": "inference.ModelInferRequest.nothing"},
        {"file_containing_extension": {"containing_type": "no.Type", "extension_number": 1}},
        {"file_containing_extension": {"containing_type": "shop.Base", "extension_number": 150}},
        {"file_containing_extension": {"containing_type": "shop.Base", "extension_number": -1}},
        {"all_extension_numbers_of_type": "shop.Nothing"},
    ],
)
def test_what_is_not_found_is_told_in_band(version, shop, fields):
    error = ask(version, shop, **fields).error_response
    assert error.error_code == 5
    assert error.error_message.startswith(f"{next(iter(fields))}: nothing here is named ")


def test_a_request_that_asks_nothing(version):
    assert ask(version).error_response.error_code == 3


@given(st.sampled_from(["file_by_filename", "file_containing_symbol", "all_extension_numbers_of_type"]), st.text())
def test_any_name_is_answered(kind, name):
    reply = ask("v1", **{kind: name})
    assert reply.WhichOneof("message_response")
    assert len(reply.error_response.error_message) <= 1024


def test_a_stream_answers_so_many_questions(version):
    async def asked():
        answering = stream(reflection_requests=2)
        for _ in range(2):
            await answering.answer(question(version, list_services=""))
        with pytest.raises(RequestError, match="2 questions were answered on this stream") as caught:
            await answering.answer(question(version, list_services=""))
        assert caught.value.fault is Fault.TOO_LARGE

    asyncio.run(asked())


def test_a_long_question_is_refused(version):
    with pytest.raises(RequestError, match="may have 64 bytes, not ") as caught:
        asyncio.run(stream(reflection_request_bytes=64).answer(question(version, list_services="x" * 60)))
    assert caught.value.fault is Fault.TOO_LARGE


def test_it_can_be_turned_off():
    simulated = SimulatedInference()
    rpcs = InferenceService(simulated, simulated, simulated, GrpcSettings(reflection=False)).rpcs()
    assert len(rpcs) == 22
    assert not any("reflection" in path for path in rpcs)
