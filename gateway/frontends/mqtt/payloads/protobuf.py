"""Protobuf messages of a FileDescriptorSet, as documents with the names of the .proto file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.domain.errors import ConfigurationError
from gateway.frontends.mqtt.payloads.content_type import ContentType
from gateway.frontends.mqtt.payloads.errors import invalid

DESCRIPTOR_LIMIT_BYTES = 4 * 2**20
"""Largest file of descriptors."""


def protobuf_reader(file: str, message: str, table: str) -> Callable[[bytes, ContentType], Any]:
    """Return a reader for `message`, which `file` describes.

    Raises ConfigurationError if the file cannot be read, or does not describe the message.
    """
    kind = _message_class(_descriptors(file, table), message, table)

    def read(payload: bytes, _content: ContentType) -> Any:
        from google.protobuf.json_format import Error, MessageToDict
        from google.protobuf.message import DecodeError

        try:
            return MessageToDict(
                kind.FromString(payload), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
            )
        except (DecodeError, Error, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise invalid(f"the payload is no protobuf message {message}: {error}") from None

    return read


def read_unconfigured(_payload: bytes, content: ContentType) -> Any:
    """Refuse a message of a route that names no descriptors."""
    raise invalid(f"{content.media} needs the settings descriptor and message of the route")


def _descriptors(file: str, table: str) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        with Path(file).open("rb") as stream:
            content = stream.read(DESCRIPTOR_LIMIT_BYTES + 1)
        if len(content) > DESCRIPTOR_LIMIT_BYTES:
            raise _unfit(table, f"{file} has more than {DESCRIPTOR_LIMIT_BYTES} bytes")
        return FileDescriptorSet.FromString(content)
    except OSError as error:
        raise _unfit(table, f"{file} cannot be read: {error.strerror or error}") from None
    except DecodeError:
        made = "protoc --include_imports --descriptor_set_out=FILE"
        raise _unfit(table, f"{file} holds no FileDescriptorSet; make it with {made}") from None


def _message_class(descriptors: Any, message: str, table: str) -> Any:
    from google.protobuf import descriptor_pool, message_factory

    pool = descriptor_pool.DescriptorPool()
    try:
        for description in descriptors.file:
            pool.Add(description)
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(message))
    except KeyError:
        raise _unfit(table, f"describes no message {message!r:.150}; write its full name", "message") from None
    except TypeError as error:
        raise _unfit(table, f"cannot be used: {error}; protoc needs --include_imports") from None


def _unfit(table: str, problem: str, key: str = "descriptor") -> ConfigurationError:
    return ConfigurationError(f"{' '.join(problem.split()):.400}", table=table, key=key)
