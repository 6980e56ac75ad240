"""The messages are the ones clients were built with, and live in a descriptor pool of their own."""

import subprocess
import sys

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from tritonclient.grpc import model_config_pb2, service_pb2

from gateway.serving.frontends.grpc_v2.codec import protocol
from gateway.serving.frontends.grpc_v2.codec.generate import compile_protos

FILES = {
    "inference.proto": (service_pb2, model_config_pb2),
    "health.proto": (health_pb2,),
    "reflection_v1alpha.proto": (reflection_pb2,),
}
OF_KSERVE = {
    "inference.RepositoryModelLoadResponse": ["model_name", "isLoaded"],
    "inference.RepositoryModelUnloadResponse": ["model_name", "isUnloaded"],
}
"""Fields of KServe's dialect in messages that Triton's clients read as empty."""
FEWEST_FIELDS = {"inference.proto": 150, "health.proto": 2, "reflection_v1alpha.proto": 18}


def test_generating_again_gives_the_committed_descriptors():
    assert compile_protos() == protocol.DESCRIPTORS.read_bytes()


def _peer(file: str, name: str):
    found = [module.DESCRIPTOR.message_types_by_name.get(name) for module in FILES[file]]
    return next((descriptor for descriptor in found if descriptor is not None), None)


def _agree(ours: Descriptor, theirs: Descriptor) -> int:
    fields = 0
    if ours.full_name in OF_KSERVE:
        assert ([field.name for field in ours.fields], [*theirs.fields]) == (OF_KSERVE[ours.full_name], [])
        return len(ours.fields)
    for field in ours.fields:
        peer = theirs.fields_by_number.get(field.number)
        assert peer is not None, f"{field.full_name} is not in the client's {theirs.full_name}"
        assert (field.name, field.type, field.is_repeated) == (peer.name, peer.type, peer.is_repeated)
        assert (field.containing_oneof or peer).name == (peer.containing_oneof or peer).name
        if field.message_type is not None:
            assert field.message_type.full_name == peer.message_type.full_name
        if field.enum_type is not None:
            values = {value.name: value.number for value in field.enum_type.values}
            assert values.items() <= {value.name: value.number for value in peer.enum_type.values}.items()
        fields += 1
    for nested in ours.nested_types:
        fields += _agree(nested, theirs.nested_types_by_name[nested.name])
    return fields


@pytest.mark.parametrize("file", FILES)
def test_every_message_field_and_number_agrees_with_the_clients_module(file):
    fields = 0
    for name, ours in protocol.pool().FindFileByName(file).message_types_by_name.items():
        theirs = _peer(file, name)
        assert theirs is not None, f"clients know no {name}"
        fields += _agree(ours, theirs)
    assert fields >= FEWEST_FIELDS[file]


def test_the_two_versions_of_reflection_differ_in_their_name_only():
    new, old = (_as_text(f"reflection_{version}.proto") for version in ("v1", "v1alpha"))
    assert old.replace("v1alpha", "v1") == new


def _as_text(file: str) -> str:
    copied = descriptor_pb2.FileDescriptorProto()
    protocol.pool().FindFileByName(file).CopyToProto(copied)
    return str(copied)


def test_every_message_of_the_clients_service_file_exists_here_but_what_we_never_count():
    ours = set(protocol.pool().FindFileByName("inference.proto").message_types_by_name)
    assert set(service_pb2.DESCRIPTOR.message_types_by_name) - ours == {"MemoryUsage"}


@pytest.mark.parametrize("file", FILES)
def test_every_method_agrees_with_the_clients_module(file):
    (ours,) = protocol.pool().FindFileByName(file).services_by_name.values()
    theirs = FILES[file][0].DESCRIPTOR.services_by_name[ours.name]
    known = {(m.name, m.input_type.full_name, m.output_type.full_name) for m in theirs.methods}
    offered = {(m.name, m.input_type.full_name, m.output_type.full_name) for m in ours.methods}
    assert offered <= known
    assert ours.name == "Health" or offered == known
    assert ours.full_name == theirs.full_name


def test_our_messages_are_not_in_the_pool_that_clients_use():
    ours = protocol.message("inference.ModelInferRequest")
    assert ours is not service_pb2.ModelInferRequest
    assert ours.DESCRIPTOR.file.pool is not descriptor_pool.Default()


def test_an_unknown_message_is_a_key_error():
    with pytest.raises(KeyError):
        protocol.message("inference.Nothing")


def test_naming_the_frontend_imports_neither_grpc_nor_protobuf():
    program = (
        "import sys, gateway.serving.frontends.grpc_v2.transport.server;"
        "print(sorted({'grpc', 'google.protobuf', 'cryptography'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
