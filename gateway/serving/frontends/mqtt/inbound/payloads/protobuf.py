"""Protobuf messages of a FileDescriptorSet, as documents with the names of the .proto file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.mqtt.inbound.payloads.content import ContentType, invalid

DESCRIPTOR_LIMIT_BYTES = 4 * 2**20
"""Largest file of descriptors."""
PROTOBUF_LIMIT_BYTES = 262_144
"""Largest payload: two bytes are an empty message, which takes memory for all of its fields."""
PROTOBUF_VALUES_LIMIT = 262_144
"""Most fields and elements of a document, with those that have their default."""
WELL_KNOWN = "google.protobuf."
"""Package of types with a form of their own in JSON: timestamps, structs, wrappers."""


def protobuf_reader(file: str, message: str, table: str) -> Callable[[bytes, ContentType], Any]:
    """Return a reader for `message`, which `file` describes.

    Raises ConfigurationError if the file cannot be read, or does not describe the message.
    """
    kind = _message_class(_descriptors(file, table), message, table)

    def read(payload: bytes, _content: ContentType) -> Any:
        from google.protobuf.json_format import Error
        from google.protobuf.message import DecodeError

        if len(payload) > PROTOBUF_LIMIT_BYTES:
            raise invalid(f"the payload has {len(payload)} bytes; protobuf takes at most {PROTOBUF_LIMIT_BYTES}")
        try:
            return _MessageConversion().read(kind.FromString(payload))
        except (DecodeError, Error, ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise invalid(f"the payload is no protobuf message {message}: {error}") from None

    return read


def read_unconfigured(_payload: bytes, content: ContentType) -> Any:
    """Refuse a message of a route that names no descriptors."""
    raise invalid(f"{content.media} needs the settings descriptor and message of the route")


class _MessageConversion:
    """Conversion of one message to objects, arrays and values, with a bound on their number."""

    def __init__(self) -> None:
        self._left = PROTOBUF_VALUES_LIMIT

    def read(self, message: Any) -> Any:
        """Return a message as an object. Fields without presence are in it with their defaults, such as 0.0."""
        if message.DESCRIPTOR.full_name.startswith(WELL_KNOWN):
            from google.protobuf.json_format import MessageToDict

            self._count(message.ByteSize())
            return MessageToDict(message)
        found = dict[str, Any]()
        for field in message.DESCRIPTOR.fields:
            if not field.has_presence or message.HasField(field.name):
                self._count(1)
                found[field.name] = self._field(message, field)
        return found

    def _field(self, message: Any, field: Any) -> Any:
        value = getattr(message, field.name)
        if field.has_presence or not hasattr(value, "__len__") or isinstance(value, str | bytes):
            return self._single(value, field)
        self._count(len(value))
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            inner = field.message_type.fields_by_name["value"]
            return {str(key): self._single(each, inner) for key, each in value.items()}
        return [self._single(each, field) for each in value]

    def _single(self, value: Any, field: Any) -> Any:
        if field.message_type is not None:
            return self.read(value)
        if field.enum_type is not None and value in field.enum_type.values_by_number:
            return field.enum_type.values_by_number[value].name
        return value

    def _count(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise ValueError(f"it has more than {PROTOBUF_VALUES_LIMIT} values")


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
