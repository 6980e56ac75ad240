"""Connections to the attacked daemon: over TCP, TLS or a UNIX socket, as its `Target` states."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from tests.attack.rig import Target

WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Exceptions of a non-blocking socket that would block."""
SOURCE = "127.0.0.66"
"""Address of the attacker; well-behaved clients are at 127.0.0.1."""
UNIX = "unix:"
HOST = "localhost"
"""Name in the daemon's certificate."""


def connected(
    target: Target, address: str, timeout_s: float = 10.0, *, mute: bool = False, source: str = SOURCE
) -> socket.socket:
    """Connect to one of the target's addresses, with a TLS handshake if it uses TLS and not `mute`."""
    if address.startswith(UNIX):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(timeout_s)
        peer.connect(address.removeprefix(UNIX))
        return peer
    host, port = address.rsplit(":", 1)
    peer = socket.create_connection((host, int(port)), timeout_s, source_address=(source, 0))
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not target.authority or mute:
        return peer
    context = ssl.create_default_context(cafile=target.authority)
    context.set_alpn_protocols(["h2" if address == target.grpc else "http/1.1"])
    return context.wrap_socket(peer, server_hostname=HOST)


def channel(
    target: Target, address: str, options: Sequence[tuple[str, Any]], compression: grpc.Compression | None = None
) -> grpc.Channel:
    """Return a gRPC channel to one of the target's addresses."""
    if not target.authority or address.startswith(UNIX):
        return grpc.insecure_channel(address, options, compression)
    credentials = grpc.ssl_channel_credentials(Path(target.authority).read_bytes())
    named = (*options, ("grpc.ssl_target_name_override", HOST))
    return grpc.secure_channel(address, credentials, named, compression)


class HttpConnection(http.client.HTTPConnection):
    """An HTTP connection over the target's transport."""

    def __init__(self, target: Target, address: str, timeout_s: float, source: str = SOURCE) -> None:
        super().__init__(HOST, timeout=timeout_s)
        self._target, self._address, self._timeout_s, self._source = target, address, timeout_s, source

    def connect(self) -> None:
        """Connect the socket."""
        self.sock = connected(self._target, self._address, self._timeout_s, source=self._source)
