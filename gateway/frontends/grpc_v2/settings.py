"""Every bound of the gRPC frontend. Those of HTTP/2 itself are `http2.limits`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from gateway.domain.errors import ConfigurationError
from gateway.frontends.grpc_v2.http2.limits import Limits

INT32_MAX = 2**31 - 1
"""gRPC keeps its channel arguments in 32 bits."""

SERVERS = ("own", "grpcio")
"""What may speak HTTP/2 here; the same service stands behind each."""


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """Defaults suit a small device on a private network."""

    server: str = "own"  # what speaks HTTP/2: own, the gateway's, or grpcio, for comparison
    max_message_bytes: int = 64 * 1024 * 1024  # largest request, before and after decompression; RESOURCE_EXHAUSTED
    max_other_bytes: int = 64 * 1024  # largest request of other methods than inference, which are parsed as they are
    max_receiving_bytes: int = (
        256 * 1024 * 1024
    )  # requests on their way or being answered, all together; then UNAVAILABLE
    max_waiting_bytes: int = 64 * 1024 * 1024  # answers that one connection does not take; then UNAVAILABLE (own)
    max_all_waiting_bytes: int = (
        256 * 1024 * 1024
    )  # answers that all connections do not take; then UNAVAILABLE for who has its share (own)
    max_connections: int = 1024  # open at once; for one more an idle one is closed, else it is closed unheard (own)
    max_handshakes: int = 256  # TLS handshakes under way at once; one more is closed unheard (own)
    max_concurrent_calls: int = 1024  # calls in progress over all connections, from their headers on; then UNAVAILABLE
    max_open_streams: int = 1024  # streaming calls open at once; of them only requests in flight are calls
    max_connection_streams: int = 128  # ... of one connection (own)
    max_health_watches: int = 256  # Health.Watch streams open at once; they count among the streaming calls
    reflection: bool = True  # whether tools such as grpcurl may ask for the services and messages offered here
    reflection_requests: int = 1000  # questions of one reflection stream; then RESOURCE_EXHAUSTED
    reflection_request_bytes: int = 4096  # ... and the longest of them, which its answer repeats
    stream_in_flight: int = 16  # requests of one ModelStreamInfer stream answered at the same time
    stream_idle_s: float = 3600.0  # a stream that brings no request for this long ends DEADLINE_EXCEEDED
    retry_after_s: float = 0.1  # hint with UNAVAILABLE where the engine gives none
    cancel_limit_s: float = 2.0  # how long a stop waits for calls to notice that they were cancelled
    last_calls_s: float = 0.25  # how long a stop lets in calls that were on their way, and then refuses as long
    handshake_timeout_s: float = 10.0  # from connecting to TLS and the client's SETTINGS; then it is closed (own)
    receive_timeout_s: float = 60.0  # from a call's headers to the end of its request; then DEADLINE_EXCEEDED (own)
    write_timeout_s: float = 60.0  # a client that takes nothing of its answers for this long is cut off (own)
    keepalive_ms: int = 7_200_000  # an idle connection is pinged after this long (gRPC's own default: two hours)
    keepalive_timeout_ms: int = 20_000  # ... and closed when the answer takes longer than this
    unix_socket_mode: int = 0o660  # permissions of a UNIX socket: its owner and group may connect
    http2: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        """Refuse unknown words, what gRPC cannot hold, bounds that nothing passes. ConfigurationError (table grpc)."""
        if self.server not in SERVERS:
            raise _refused("server", f"{self.server!r:.40} is unknown; write one of {', '.join(SERVERS)}")
        for key in (spec.name for spec in fields(self) if type(getattr(self, spec.name)) is int):
            if not 1 <= getattr(self, key) <= INT32_MAX:
                raise _refused(key, f"must be between 1 and {INT32_MAX}, not {getattr(self, key)}")
        if self.unix_socket_mode > 0o777:
            raise _refused(
                "unix_socket_mode", f"must be permission bits such as 0o660, not 0o{self.unix_socket_mode:o}"
            )


def _refused(key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, table="grpc", key=key)
