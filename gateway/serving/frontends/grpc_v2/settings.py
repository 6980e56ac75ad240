"""Limits of the gRPC frontend. Those of HTTP/2 itself are `http2.limits`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.grpc_v2.http2.limits import Http2Limits

INT32_MAX = 2**31 - 1
"""Largest channel argument: gRPC keeps them in 32 bits."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Settings of the gRPC frontend. The defaults suit a small device on a private network."""

    max_message_bytes: int = 64 * 1024 * 1024  # largest request, before and after decompression; RESOURCE_EXHAUSTED
    max_receiving_bytes: int = (
        256 * 1024 * 1024
    )  # requests in transit or being answered, and answers being encoded, all together; then UNAVAILABLE
    max_all_waiting_bytes: int = (
        256 * 1024 * 1024
    )  # answers that all connections do not take; then UNAVAILABLE for a caller above its share
    max_connections: int = 1024  # open at once; for one more an idle one is closed, else it is closed unread
    max_concurrent_calls: int = 1024  # calls in progress over all connections, from their headers on; then UNAVAILABLE
    max_open_streams: int = 1024  # streaming calls open at once; of them only requests in flight are calls
    reflection: bool = True  # allow tools such as grpcurl to ask for the services and messages offered here
    stream_idle_s: float = 3600.0  # a stream that brings no request for this long ends DEADLINE_EXCEEDED
    receive_timeout_s: float = 60.0  # from a call's headers to the end of its request; then DEADLINE_EXCEEDED
    write_timeout_s: float = 60.0  # a client that takes nothing of its answers for this long is disconnected
    keepalive_ms: int = 7_200_000  # an idle connection is pinged after this long (gRPC's own default: two hours)
    unix_socket_mode: int = 0o660  # permissions of a UNIX socket: its owner and group may connect
    http2: Http2Limits = field(default_factory=Http2Limits)
    max_other_bytes: ClassVar[int] = 64 * 1024  # largest request of other methods, which are parsed unchanged
    max_waiting_bytes: ClassVar[int] = 64 * 1024 * 1024  # answers that one connection does not take; then UNAVAILABLE
    max_handshakes: ClassVar[int] = 256  # TLS handshakes under way at once; one more is closed unread
    max_connection_streams: ClassVar[int] = 128  # streaming calls of one connection
    max_health_watches: ClassVar[int] = 256  # Health.Watch streams open at once; they count among the streaming calls
    reflection_requests: ClassVar[int] = 1000  # questions of one reflection stream; then RESOURCE_EXHAUSTED
    reflection_request_bytes: ClassVar[int] = 4096  # ... and the longest of them, which its answer repeats
    stream_in_flight: ClassVar[int] = 16  # requests of one ModelStreamInfer stream answered at the same time
    retry_after_s: ClassVar[float] = 0.1  # hint with UNAVAILABLE if the engine gives none
    cancel_limit_s: ClassVar[float] = 2.0  # longest wait of a stop for calls to notice that they were cancelled
    last_calls_s: ClassVar[float] = 0.25  # a stop accepts calls in transit for this long, then refuses as long
    handshake_timeout_s: ClassVar[float] = 10.0  # from connecting to TLS and the client's SETTINGS; then it is closed
    keepalive_timeout_ms: ClassVar[int] = 20_000  # a pinged connection that does not answer within this is closed

    def __post_init__(self) -> None:
        """Refuse values that gRPC cannot represent, and bounds that nothing passes.

        Raises ConfigurationError (table grpc).
        """
        for key in (spec.name for spec in fields(self) if type(getattr(self, spec.name)) is int):
            if not 1 <= getattr(self, key) <= INT32_MAX:
                raise _refused(key, f"must be between 1 and {INT32_MAX}, not {getattr(self, key)}")
        if self.unix_socket_mode > 0o777:
            raise _refused(
                "unix_socket_mode", f"must be permission bits such as 0o660, not 0o{self.unix_socket_mode:o}"
            )


def _refused(key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, table="grpc", key=key)
