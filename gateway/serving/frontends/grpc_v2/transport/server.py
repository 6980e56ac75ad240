"""The gateway's own gRPC server: listeners, and the state that its connections share.

decisions/0013 states the reasons for an own server.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from socket import AF_UNIX, socket
from ssl import SSLContext
from typing import Any, cast

from gateway.common.domain.access import Address, Security
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.domain.tensor import Raw
from gateway.common.timeouts import wait_for
from gateway.common.wire.kept_listeners import KEPT
from gateway.common.wire.listening import bound_address, listening
from gateway.serving.frontends.authentication import Authentication
from gateway.serving.frontends.connections import ConnectionPlaces
from gateway.serving.frontends.grpc_v2.calls import INFER, CallInfo, Rpc
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from gateway.serving.frontends.grpc_v2.service.inference import InferenceService
from gateway.serving.frontends.grpc_v2.settings import GrpcSettings
from gateway.serving.frontends.grpc_v2.transport.connection import GrpcConnection
from gateway.serving.frontends.grpc_v2.transport.messages import Incoming
from gateway.serving.frontends.grpc_v2.transport.sockets import Sockets, SocketTransport
from gateway.serving.frontends.grpc_v2.transport.tls_transport import TlsTransport
from gateway.serving.frontends.peer import Peer, peer_behind
from gateway.serving.frontends.tls import server_context

BACKLOG = 256
"""Connections that the kernel holds until they are accepted."""
BUFFER_BYTES = 256 * 1024
"""Most bytes of one read."""

log = logging.getLogger(__name__)


class GrpcServer:
    """gRPC server. Call `start` once and `stop` once. `load` counts the work in progress over all connections."""

    def __init__(self, service: InferenceService, settings: GrpcSettings, security: Security) -> None:
        self.settings, self.authentication = settings, Authentication("grpc", security)
        self.codec, self.encode = service.codec, service.encode
        self.submission = service.submission
        rpcs = service.rpcs()
        self.rpcs = {path.encode(): rpc for path, rpc in rpcs.items()}
        self.infer = rpcs[INFER]
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.load = load = service.load
        self.message_memory, self.decoding = service.message_memory, service.decoding
        self._handshakes = load.pools.make("grpc handshakes", "fixed", settings.max_handshakes)
        self._in_handshake: dict[GrpcConnection, Peer] = {}
        self._connections: ConnectionPlaces[GrpcConnection] = ConnectionPlaces(
            load.pools.make("grpc connections", "[grpc] max_connections", settings.max_connections)
        )
        load.calls.make_room = partial(self._connections.make_room, half_open=True)
        self._service, self._security = service, security
        self._context: SSLContext | None = None
        self._open: dict[GrpcConnection, None] = {}
        self._sockets: Sockets
        self._paths: list[str] = []
        self._idle, self._stopping = asyncio.Event(), False

    async def start(self, addresses: Sequence[Address]) -> list[Address]:
        """Listen on all of `addresses`. Return them with port 0 resolved.

        Raises ConfigurationError with the first address that fails. TLS protects TCP; permissions protect a UNIX
        socket, and its callers are identified by their user id.
        """
        self._context, mode = server_context(self._security, protocol="h2"), self.settings.unix_socket_mode
        with listening(addresses, "grpc", backlog=BACKLOG, unix_mode=mode) as sockets:
            bound = [bound_address(each) for each in sockets]
            self._sockets = Sockets(self._service.hold, self._service.release)
            for each in sockets:
                if self._context is None or each.family == AF_UNIX:
                    self._sockets.listen(each, SocketTransport, self._admit)
                else:
                    self._sockets.listen(each, self._tls_transport, self._admit_handshake)
        self._paths = [address.path for address in bound if address.path]
        return bound

    def secure(self, security: Security) -> Callable[[], None]:
        """Return a function that applies `security` to callers at once, and to new handshakes.

        TLS and client certificates stay on or off. Raises as `server_context` does.
        """
        return partial(self._take, security, server_context(security, protocol="h2"))

    def _take(self, security: Security, context: SSLContext | None) -> None:
        self._context, before = context, self.authentication.security
        self.authentication.replace(security)
        if (before.tokens, before.grants) != (security.tokens, security.grants):
            for connection in list(self._open):
                connection.check_callers()

    async def stop(self, grace_s: float) -> None:
        """Accept no more calls, finish those in progress for up to `grace_s`, then end them UNAVAILABLE."""
        if self._stopping:
            return
        self._stopping, self.load.on_end = True, self._tell_idle
        self._service.drain()
        self._sockets.stop_listening()
        for path in self._paths:
            KEPT.unlink(path)
        ends_s = time.monotonic() + grace_s
        for connection in list(self._open):
            connection.begin_drain()
        await self._emptied(min(self.settings.last_calls_s, grace_s))
        for connection in list(self._open):
            connection.drain()
        await self._emptied(ends_s - time.monotonic())
        error = RequestError(Fault.UNAVAILABLE, "the gateway is stopping; ask again later")
        for connection in list(self._open):
            connection.end_calls(error)
        limit_s = self.settings.cancel_limit_s
        if not await self._emptied(limit_s) and self.load.busy:
            log.warning("%d gRPC calls did not end within %s s of being cancelled", self.load.busy, limit_s)
        for connection in list(self._open):
            connection.abort()
        self._sockets.close()

    async def _emptied(self, limit_s: float) -> bool:
        """Wait until no connection and no call is left. Return False if that took longer than `limit_s`."""
        self._idle.clear()
        self._tell_idle()
        try:
            await wait_for(self._idle.wait(), max(limit_s, 0.0))
        except TimeoutError:
            return False
        return True

    # ---- interface of connections ----------------------------------------------------------------------------------
    def enter(self, connection: GrpcConnection, peer: Peer) -> bool:
        """Keep a connection that was made. Return False if the caller in its certificate has too many."""
        self._end_handshake(connection)
        if not self._connections.identify(connection, peer):
            return False
        self._open[connection] = None
        if self._stopping:  # its handshake ended too late
            connection.drain()
        return True

    def leave(self, connection: GrpcConnection) -> None:
        """Forget a connection that is gone."""
        self._open.pop(connection, None)
        self._tell_idle()

    def closed(self, connection: GrpcConnection) -> None:
        """Free the place of a connection whose socket is closed."""
        self._end_handshake(connection)
        self._connections.leave(connection)

    def incoming(self, stream: Stream) -> Incoming:
        """Return the assembler of a stream's messages, in the share of its caller."""
        limit_bytes, most_bytes = self.bounds(stream.headers.rpc)
        return Incoming(limit_bytes, self.message_memory, self.codec.lead, stream.headers.info, most_bytes)

    def bounds(self, rpc: Rpc) -> tuple[int, Callable[[Raw], int] | None]:
        """Return the largest message of a method, and a function that bounds a message by its beginning, or None."""
        if rpc.raw:
            return self.settings.max_message_bytes, self._service.reader.most_bytes
        return min(self.settings.max_other_bytes, self.settings.max_message_bytes), None

    def memory(self, size: int, info: CallInfo) -> memoryview:
        """Return memory for a message, counted. Raises as `MessageMemory.take` does."""
        return self.message_memory.take(size, self.codec.lead(size), info, filled=size)[0]

    def _tell_idle(self) -> None:
        if not (self.load.busy or self._open):
            self._idle.set()

    # ---- admission of connections ----------------------------------------------------------------------------------
    def _admit(self, connected: socket, name: Any) -> GrpcConnection | None:
        """Return a connection's protocol, or None if its caller or this server has too many connections.

        A connection closed before SETTINGS is a failed attempt for gRPC's clients, and they back off.
        """
        return self._admit_peer(peer_behind(connected, name))

    def _admit_peer(self, peer: Peer) -> GrpcConnection | None:
        connection = GrpcConnection(self, peer)
        return connection if self._connections.enter(connection, peer) else None

    def _admit_handshake(self, connected: socket, name: Any) -> GrpcConnection | None:
        """Admit a connection as `_admit` does; until its handshake ends, it counts among the handshakes, too."""
        peer = peer_behind(connected, name)
        if refusal := self._handshakes.take(peer.share_key, local=peer.local):
            self._handshakes.count(peer.share_key, refusal)
            return None
        connection = self._admit_peer(peer)
        if connection is None:
            self._handshakes.give(peer.share_key, local=peer.local)
        else:
            self._in_handshake[connection] = peer
        return connection

    def _end_handshake(self, connection: GrpcConnection) -> None:
        peer = self._in_handshake.pop(connection, None)
        if peer is not None:
            self._handshakes.give(peer.share_key, local=peer.local)

    def _tls_transport(self, *connection: Any) -> TlsTransport:
        context = cast("SSLContext", self._context)  # TLS stays on
        return TlsTransport(context, self.settings.handshake_timeout_s, *connection)
