"""Reflection `grpc.reflection.v1` and `v1alpha`, for grpcurl and other tools without a server's .proto files.

The two differ in their name only. An unknown symbol is reported in-band, and the stream continues (the specification's
ErrorResponse). A request above a limit ends the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.problem import error_text
from gateway.serving.frontends.grpc_v2.codec.protocol import message
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings

if TYPE_CHECKING:
    from google.protobuf.descriptor import FileDescriptor
    from google.protobuf.descriptor_pool import DescriptorPool

INVALID_ARGUMENT, NOT_FOUND = 3, 5
"""Status codes of gRPC, which are sent as numbers inside ErrorResponse."""


class ReflectionStream:
    """One ServerReflectionInfo call about the files of `pool` and the `services` offered, by full name."""

    def __init__(self, pool: DescriptorPool, services: Sequence[str], settings: GrpcSettings) -> None:
        self._pool, self._services = pool, services
        self._limit, self._limit_bytes = settings.reflection_requests, settings.reflection_request_bytes
        self._asked = 0
        self._answers: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
            "file_by_filename": lambda name: _files(pool.FindFileByName(name)),
            "file_containing_symbol": lambda symbol: _files(self._file_with(symbol)),
            "file_containing_extension": lambda asked: _files(self._file_extending(asked)),
            "all_extension_numbers_of_type": self._extension_numbers,
            "list_services": self._listed,
        }

    async def answer(self, request: Any) -> Any:
        """Return the ServerReflectionResponse, in the request's version.

        Raises TOO_LARGE if the stream sends too many or too long requests: each answer repeats its request.
        """
        self._asked += 1
        if self._asked > self._limit:
            raise RequestError(
                Fault.TOO_LARGE, f"{self._limit} questions were answered on this stream; open another for more"
            )
        if request.ByteSize() > self._limit_bytes:
            raise RequestError(
                Fault.TOO_LARGE, f"a reflection request may have {self._limit_bytes} bytes, not {request.ByteSize()}"
            )
        if (kind := request.WhichOneof("message_request")) is None:
            answer = _error(INVALID_ARGUMENT, "the request asks nothing; set one field of message_request")
        else:
            try:
                answer = self._answers[kind](getattr(request, kind))
            except KeyError:
                answer = _error(NOT_FOUND, f"{kind}: nothing here is named {str(getattr(request, kind)).strip()!r}")
        response = message(f"{request.DESCRIPTOR.file.package}.ServerReflectionResponse")
        return response(valid_host=request.host, original_request=request, **answer)

    def _listed(self, _: str) -> Mapping[str, Any]:
        return {"list_services_response": {"service": [{"name": name} for name in self._services]}}

    def _extension_numbers(self, name: str) -> Mapping[str, Any]:
        extensions = self._pool.FindAllExtensions(self._pool.FindMessageTypeByName(name))
        numbers = sorted(extension.number for extension in extensions)
        return {"all_extension_numbers_response": {"base_type_name": name, "extension_number": numbers}}

    def _file_extending(self, asked: Any) -> FileDescriptor:
        extended = self._pool.FindMessageTypeByName(asked.containing_type)
        found: Any = self._pool.FindExtensionByNumber(extended, asked.extension_number)  # its stub lacks `file`
        return self._pool.FindFileByName(found.file.name)

    def _file_with(self, symbol: str) -> FileDescriptor:
        try:
            return self._pool.FindFileContainingSymbol(symbol)
        except KeyError:  # protobuf's pool knows all kinds of names except those of methods
            service, _, method = symbol.rpartition(".")
            return self._pool.FindServiceByName(service).methods_by_name[method].containing_service.file


def _files(file: FileDescriptor) -> Mapping[str, Any]:
    found = {each.name: each.serialized_pb for each in _imported(file)}
    return {"file_descriptor_response": {"file_descriptor_proto": list(found.values())}}


def _imported(file: FileDescriptor) -> Iterator[FileDescriptor]:
    """Yield `file`, then all files that it imports; imports contain no cycles."""
    yield file
    for imported in file.dependencies:
        yield from _imported(imported)


def _error(code: int, text: str) -> Mapping[str, Any]:
    return {"error_response": {"error_code": code, "error_message": error_text(text)}}
