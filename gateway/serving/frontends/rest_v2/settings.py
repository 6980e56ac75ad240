"""Limits of the REST frontend."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.http.browsers import check_host_pattern, check_origin_text


@dataclass(frozen=True, slots=True)
class RestSettings:
    """Settings of the REST frontend. The defaults suit a small device on a private network."""

    max_body_bytes: int = 64 * 1024 * 1024  # largest request body, before and after decompression; then 413
    max_json_bytes: int = 16 * 1024 * 1024  # largest JSON part of a body; then 413
    max_buffered_bytes: int = (
        256 * 1024 * 1024
    )  # bodies and answers held in memory over all requests; the next is 503, or waits (body_timeout_s)
    max_requests: int = 256  # requests in progress over all connections; the next is 503 at once
    max_connections: int = 512  # open connections; the next is answered 503 and closed
    body_timeout_s: float = (
        60.0  # to the last byte of a body, then 408; one sent on this device waits as long for memory
    )
    write_timeout_s: float = 60.0  # a client that takes nothing of its answer for this long is disconnected
    keep_alive_s: int = 60  # an idle connection is closed after this long
    hosts: tuple[str, ...] = ()  # more host names for callers without a token: camera-7.lan, *.example.org, *
    cors_origins: tuple[str, ...] = ()  # pages that may send requests: https://panel.example.org; others are refused
    unix_socket_mode: int = 0o660  # permissions of a UNIX socket: its owner and group may connect
    max_header_bytes: ClassVar[int] = 16 * 1024  # request line and headers of one request; then 400
    backlog: ClassVar[int] = 256  # connections that the kernel holds until they are accepted
    header_timeout_s: ClassVar[float] = 10.0  # from connecting, or a request's first byte, to its last header
    retry_after_s: ClassVar[float] = 1.0  # hint with 503 if the engine gives none
    compress_from_bytes: ClassVar[int] = 1024  # answers of at least this size are compressed if the caller accepts it
    compression_level: ClassVar[int] = 1  # zlib's level, 1 (quick) to 9 (small)

    def __post_init__(self) -> None:
        """Refuse limits that no request passes. Raises ConfigurationError (table http)."""
        for host in self.hosts:
            check_host_pattern(host)
        for origin in self.cors_origins:
            check_origin_text(origin)
        for key in (spec.name for spec in fields(self) if type(getattr(self, spec.name)) in {int, float}):
            if getattr(self, key) <= 0:
                raise _refused(key, "must be more than 0")
        if self.unix_socket_mode > 0o777:
            raise _refused(
                "unix_socket_mode", f"must be permission bits such as 0o660, not 0o{self.unix_socket_mode:o}"
            )


def _refused(key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, table="http", key=key)
