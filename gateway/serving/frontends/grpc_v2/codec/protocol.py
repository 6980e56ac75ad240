"""Messages of the protocol, in a descriptor pool of their own.

tritonclient's generated module registers the same names in protobuf's default pool. Two definitions in one pool clash
("duplicate symbol"), two pools do not. The descriptors are data next to this file; nothing is compiled at run time.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.serving.frontends.grpc_v2.codec.protobuf import read_varint

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool

DESCRIPTORS = Path(__file__).with_name("descriptors.binpb")
SERVICES = ("inference.GRPCInferenceService", "grpc.health.v1.Health")
REFLECTION = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


@functools.cache
def pool() -> DescriptorPool:
    """Return the private pool, read once."""
    from google.protobuf import descriptor_pool

    private, content, end = descriptor_pool.DescriptorPool(), DESCRIPTORS.read_bytes(), 0
    while end < len(content):  # a FileDescriptorSet: the tag of `file`, its size, its bytes; descriptor_pb2 takes 7 ms
        size, begin = read_varint(content, end + 1)
        end = begin + size
        private.AddSerializedFile(content[begin:end])
    return private


@functools.cache
def message(name: str) -> Any:
    """Return the class of the message with this full name. Raises KeyError if the .proto files have none."""
    from google.protobuf import message_factory

    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


def services(names: Sequence[str]) -> Sequence[ServiceDescriptor]:
    """Return descriptors of the services with these full names. Raises KeyError if the .proto files have none."""
    return [pool().FindServiceByName(name) for name in names]
