"""Every bound of the REST frontend."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RestSettings:
    """Defaults suit a small device on a private network."""

    max_body_bytes: int = 64 * 1024 * 1024  # largest request body, before and after decompression; then 413
    max_json_bytes: int = 16 * 1024 * 1024  # largest JSON part of a body: it is parsed on the event loop; then 413
    max_buffered_bytes: int = 256 * 1024 * 1024  # bodies held in memory over all requests; the next is 503 at once
    max_header_bytes: int = 16 * 1024  # request line and headers of one request; then 431
    max_requests: int = 256  # requests in progress over all connections; the next is 503 at once
    max_connections: int = 512  # open connections; the next is told 503 and closed
    backlog: int = 256  # connections that the kernel holds until they are accepted
    header_timeout_s: float = 10.0  # from connecting, or a request's first byte, to its last header
    body_timeout_s: float = 60.0  # from the last header to the last byte of the body; then 408
    write_timeout_s: float = 60.0  # a client that takes nothing of its answer for this long is cut off
    keep_alive_s: int = 60  # an idle connection is closed after this long
    retry_after_s: float = 1.0  # hint with 503 where the engine gives none
    compress_from_bytes: int = 1024  # answers this long are compressed where the caller accepts it
    compression_level: int = 1  # zlib's level, 1 (quick) to 9 (small)
    unix_socket_mode: int = 0o660  # permissions of a UNIX socket: its owner and group may connect
