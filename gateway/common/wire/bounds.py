"""Limits of every HTTP port; the settings of the port document each."""

from __future__ import annotations

from typing import Protocol

ACCEPTED_PER_PASS = 4
"""Connections that a listener accepts in one pass of the event loop: the setup of each takes up to 0.5 ms over HTTP."""

LATE_S = 1.0
"""Delay of a timer above which the event loop was late: what the peer has sent in time may not be read yet."""


class PortBounds(Protocol):
    """Settings of sockets and connections."""

    @property
    def max_header_bytes(self) -> int: ...
    @property
    def backlog(self) -> int: ...
    @property
    def header_timeout_s(self) -> float: ...
    @property
    def body_timeout_s(self) -> float: ...
    @property
    def write_timeout_s(self) -> float: ...
    @property
    def keep_alive_s(self) -> int: ...
    @property
    def unix_socket_mode(self) -> int: ...
