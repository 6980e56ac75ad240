"""Limits of every HTTP port; the settings of the port document each."""

from __future__ import annotations

from typing import Protocol


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
