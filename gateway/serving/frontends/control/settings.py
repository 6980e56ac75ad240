"""Limits of the control API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gateway.common.domain.access import Address, read_address
from gateway.common.domain.errors import ConfigurationError

OFF = "off"


@dataclass(frozen=True, slots=True)
class ControlServerSettings:
    """Settings of `[control]`: the UNIX socket over which only the update agent controls this gateway."""

    listen: str = ""  # unix:/path; "" or "off": no control API
    unix_socket_mode: int = 0o660  # permissions of the socket: its owner and group may connect
    users: tuple[str, ...] = ("edge-agent",)  # more users that may send commands: names or ids
    max_drain_s: ClassVar[float] = 600.0  # longest time that an unload may give a version to finish its queue
    max_body_bytes: ClassVar[int] = 65_536  # largest request body, before and after decompression; then 413
    max_buffered_bytes: ClassVar[int] = 1_048_576  # bodies held in memory over all requests; the next is 503 at once
    max_header_bytes: ClassVar[int] = 16_384  # request line and headers of one request; then 400
    max_requests: ClassVar[int] = 16  # requests in progress over all connections; the next is 503 at once
    max_connections: ClassVar[int] = 32  # open connections; the next is answered 503 and closed
    backlog: ClassVar[int] = 32  # connections that the kernel holds until they are accepted
    header_timeout_s: ClassVar[float] = 10.0  # from connecting, or a request's first byte, to its last header
    body_timeout_s: ClassVar[float] = 10.0  # from the last header to the last byte of the body; then 408
    write_timeout_s: ClassVar[float] = 60.0  # a client that takes nothing of its answer for this long is disconnected
    keep_alive_s: ClassVar[int] = 60  # an idle connection is closed after this long
    retry_after_s: ClassVar[float] = 1.0  # hint with 503 if the engine gives none

    def __post_init__(self) -> None:
        """Refuse a mode that no one may use, and an address on a network. Raises ConfigurationError (table control)."""
        if not 0 < self.unix_socket_mode <= 0o777:
            raise _refused(
                "unix_socket_mode", f"must be permission bits such as 0o660, not 0o{self.unix_socket_mode:o}"
            )
        if "" in self.users:
            raise _refused("users", 'must be names or ids of users, not ""')
        self.address  # noqa: B018  raises for an invalid address

    @property
    def address(self) -> Address | None:
        """Return the address to listen on, or None. Raises ConfigurationError if it is no UNIX socket."""
        address = read_address(self.listen or OFF, "control")
        if address is not None and not address.path:
            raise _refused(
                "listen", f"must be a UNIX socket, such as unix:/run/edge-gateway/control.sock, not {address}"
            )
        return address


def _refused(key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, table="control", key=key)
