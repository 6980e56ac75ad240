"""Interfaces inside the transport: a connection as its calls use it, and the server as its connections use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from gateway.common.domain.errors import RequestError
from gateway.common.domain.tensor import Raw
from gateway.serving.domain.infer import InferResponse, RequestedOutput
from gateway.serving.domain.ports import Decoding
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.grpc_v2.calls import CallInfo, Rpc
from gateway.serving.frontends.grpc_v2.codec.infer_codec import InferCodec
from gateway.serving.frontends.grpc_v2.framing import Encoded
from gateway.serving.frontends.grpc_v2.http2.sender import Piece
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from gateway.serving.frontends.grpc_v2.service.load import ConnectionLoad, Load
from gateway.serving.frontends.grpc_v2.service.submission import InferSubmission
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.messages import Incoming, ReceivedMessage
from gateway.serving.frontends.grpc_v2.transport.write_ahead import WriteAhead
from gateway.serving.frontends.peer import Peer


class MessageSource(Protocol):
    """Settings, limits and memory for reading messages, shared by the server and its connections."""

    settings: GrpcSettings
    submission: InferSubmission
    decoding: Decoding

    def incoming(self, stream: Stream) -> Incoming:
        """Return the assembler of a stream's messages, in the share of its caller."""

    def bounds(self, rpc: Rpc) -> tuple[int, Callable[[Raw], int] | None]:
        """Return the largest message of a method, and a function that bounds a message by its beginning, or None."""

    def memory(self, size: int, info: CallInfo) -> memoryview:
        """Return memory for a message, counted. Raises as `MessageMemory.take` does."""


class CallConnection(MessageSource, Protocol):
    """Connection as its calls use it. Implemented by `GrpcConnection`."""

    load: ConnectionLoad
    write_ahead: WriteAhead

    def start(self, stream: Stream, message: ReceivedMessage) -> None:
        """Start a unary call whose request is complete."""

    def grant(self, stream: Stream, size: int) -> None:
        """Let the peer send at least `size` bytes more of a stream."""

    def reply(self, stream: Stream, pieces: Sequence[Piece], size: int) -> None:
        """Send a unary call's whole reply."""

    def write(self, stream: Stream, pieces: Sequence[Piece]) -> None:
        """Send one message of a streaming reply with the next `flush`."""

    def end(self, stream: Stream) -> None:
        """End a streaming reply."""

    def end_with_error(self, stream: Stream, error: RequestError) -> None:
        """End a call with an error, at any stage."""

    def flush(self) -> None:
        """Write all frames."""


C_contra = TypeVar("C_contra", contravariant=True)


class ConnectionOwner(MessageSource, Protocol[C_contra]):
    """Server as its connections use it. Implemented by `GrpcServer`."""

    authentication: Authentication
    rpcs: dict[bytes, Rpc]
    infer: Rpc
    codec: InferCodec
    load: Load
    buffer: memoryview

    async def encode(self, response: InferResponse, asked: Sequence[RequestedOutput], call: CallInfo) -> Encoded:
        """Return the reply of a response that takes long to encode. Raises RequestError."""

    def enter(self, connection: C_contra, peer: Peer) -> bool:
        """Keep a connection that was made. Return False if the caller in its certificate has too many."""

    def leave(self, connection: C_contra) -> None:
        """Forget a connection that is gone."""

    def closed(self, connection: C_contra) -> None:
        """Free the place of a connection whose socket is closed."""
