"""Limits that more than one frontend applies."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError

SERVER_NAME = "edge-inference-gateway"
"""Name of this server in its metadata."""
BODY_PAUSE_S = 10.0
"""Longest time between two pieces of a request's body; then it ends as one that took too long."""
KEY_LIMIT_BYTES = 255
"""Most bytes of a file's name (NAME_MAX), which a segment's key is."""


@dataclass(frozen=True, slots=True)
class SharedMemorySettings:
    """Settings of `[shared_memory]`: tensors of callers on this device in their shared memory (gRPC and HTTP)."""

    allowed: bool = False  # allow callers on this device to register segments of /dev/shm
    callers: tuple[
        str, ...
    ] = ()  # only these callers: token name, certificate, uid:1000, address; (): any on this device
    key_prefix: str = ""  # only keys with this prefix may be registered
    socket: str = ""  # path of a UNIX socket at which programs pass sealed memfds, read in place; "": none
    unix_socket_mode: int = 0o660  # permissions of that socket: its owner and group may connect
    over_tcp: bool = False  # True: callers on this device may register over TCP, which does not report their user
    copy_inputs: bool = True  # read inputs by copy; false: in place, and truncating a segment ends the gateway
    max_regions: int = 64  # regions registered at once, of all callers; one more replaces an idle one
    max_region_bytes: int = 64 * 1024 * 1024  # largest region
    max_bytes: int = 256 * 1024 * 1024  # all regions together
    caller_percent: ClassVar[int] = 50  # % of both for one caller, which is often the user of all cameras' programs
    idle_s: ClassVar[float] = 60.0  # a region unused for this long is dropped if a limit is reached
    sweep_s: ClassVar[float] = 30.0  # time between checks for regions whose segment or process is gone

    def __post_init__(self) -> None:
        """Refuse limits that nothing passes. Raises ConfigurationError (table shared_memory)."""
        for key in (spec.name for spec in fields(self) if type(getattr(self, spec.name)) in {int, float}):
            if getattr(self, key) <= 0:
                raise _refused(key, "must be more than 0")
        if self.socket and not self.allowed:
            raise _refused("socket", "needs allowed = true")
        if self.socket and not self.socket.startswith("/"):
            raise _refused("socket", f"must be an absolute path, not {self.socket!r:.80}")
        if self.unix_socket_mode > 0o777:
            raise _refused(
                "unix_socket_mode", f"must be permission bits such as 0o660, not 0o{self.unix_socket_mode:o}"
            )
        if "/" in self.key_prefix or len(self.key_prefix.encode()) > KEY_LIMIT_BYTES:
            raise _refused(
                "key_prefix", f"must be the beginning of a file's name, without '/', not {self.key_prefix!r:.80}"
            )


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """Division of each total of gRPC and HTTP (connections, handshakes, calls, streams, bytes): `[shares]`.

    A caller is a token, a certificate, a user behind a UNIX socket, or an address (IPv6: its /64). A quarter of 1,024
    connections allows 256 cameras behind one NAT gateway or recorder. Addresses cost nothing, so those of one network
    without a token or certificate have twice as much together.
    """

    caller_percent: int = 25  # % of each total that one caller may have
    local_percent: int = 10  # % of each total kept for this device; as much for tokens, certificates, UNIX sockets
    log_period_s: ClassVar[float] = 60.0  # a refused caller is logged once in this time, then how many more refusals
    log_callers: ClassVar[int] = 32  # callers logged in that time; the others are logged together

    def __post_init__(self) -> None:
        """Refuse shares that nothing passes. Raises ConfigurationError (table shares)."""
        for key, low, high in (("caller_percent", 1, 100), ("local_percent", 0, 99)):
            if not low <= getattr(self, key) <= high:
                raise _refused(key, f"must be between {low} and {high}, not {getattr(self, key)}", "shares")

    @property
    def caller_bytes_percent(self) -> int:
        """Return the % of each total of bytes that one caller may have: a third at least, for the largest message."""
        return max(33, self.caller_percent)

    @property
    def network_percent(self) -> int:
        """Return the % of each total for all addresses of one network: IPv4 /24, IPv6 /64, loopback."""
        return min(100, 2 * self.caller_percent)


def _refused(key: str, problem: str, table: str = "shared_memory") -> ConfigurationError:
    return ConfigurationError(problem, table=table, key=key)
