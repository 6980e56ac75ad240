"""The gateway's own gRPC server: listeners, and what its connections share. decisions/0013 says why it is our own."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from socket import AF_UNIX, socket
from ssl import SSLContext
from typing import Any, cast

from gateway.domain.access import Address, Security
from gateway.domain.errors import Fault, RequestError
from gateway.frontends.authentication import Authentication
from gateway.frontends.grpc_v2.calls import INFER, Rpc
from gateway.frontends.grpc_v2.link import Link
from gateway.frontends.grpc_v2.messages import Incoming
from gateway.frontends.grpc_v2.patterns import Raw
from gateway.frontends.grpc_v2.secure import SecureWire
from gateway.frontends.grpc_v2.service import InferenceService
from gateway.frontends.grpc_v2.settings import GrpcSettings
from gateway.frontends.grpc_v2.sockets import Sockets, Wire
from gateway.frontends.tls import server_context
from gateway.wire.listening import bound_address, listening

BACKLOG = 256
"""Connections that the kernel holds until they are accepted."""
BUFFER_BYTES = 256 * 1024
"""What one read takes at most."""

SPARE_FACTOR = 2
"""Sockets that may be open for each connection of `max_connections`: some shake hands yet, some are told why not."""

log = logging.getLogger(__name__)


class GrpcServer:
    """`start` once, `stop` once. `calls` are in progress over all connections."""

    def __init__(self, service: InferenceService, settings: GrpcSettings, security: Security) -> None:
        self.settings, self.authentication = settings, Authentication("grpc", security)
        self.codec, self.submit = service.codec, service.submit
        rpcs = service.rpcs()
        self.rpcs = {path.encode(): rpc for path, rpc in rpcs.items()}
        self.infer = rpcs[INFER]
        self.buffer = memoryview(bytearray(BUFFER_BYTES))
        self.room, self.decoding = service.room, service.decoding
        self.calls = 0
        self._service, self._security = service, security
        self._context: SSLContext | None = None
        self._links: dict[Link, None] = {}
        self._sockets: Sockets
        self._paths: list[Path] = []
        self._idle, self._stopping = asyncio.Event(), False

    async def start(self, addresses: Sequence[Address]) -> list[Address]:
        """Listen on all of `addresses`; returns them with port 0 resolved. ConfigurationError names one that cannot be.

        TLS guards TCP; a UNIX socket is guarded by its permissions, and its callers are known by their user id.
        """
        self._context, mode = server_context(self._security, protocol="h2"), self.settings.unix_socket_mode
        with listening(addresses, "grpc", backlog=BACKLOG, unix_mode=mode) as sockets:
            bound = [bound_address(each) for each in sockets]
            self._sockets = Sockets(
                self._link, self._service.hold, self._service.release, most=SPARE_FACTOR * self.settings.max_connections
            )
            for each in sockets:
                self._serve(each)
        self._paths = [Path(address.path) for address in bound if address.path]
        return bound

    def secure(self, security: Security) -> Callable[[], None]:
        """Return what identifies callers by this at once, and uses these certificates for new handshakes.

        TLS and client certificates stay on or off. Raises as `server_context` does.
        """
        return partial(self._take, security, server_context(security, protocol="h2"))

    def _take(self, security: Security, context: SSLContext | None) -> None:
        self._context, before = context, self.authentication.security
        self.authentication.replace(security)
        if (before.tokens, before.grants) != (security.tokens, security.grants):
            for link in list(self._links):
                link.check_callers()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, finish those in progress for up to `grace_s`, then end them UNAVAILABLE."""
        if self._stopping:
            return
        self._stopping = True
        self._service.drain()
        self._sockets.stop_listening()
        for path in self._paths:
            path.unlink(missing_ok=True)
        ends_s = time.monotonic() + grace_s
        for link in list(self._links):
            link.begin_drain()
        await self._emptied(min(self.settings.last_calls_s, grace_s))
        for link in list(self._links):
            link.drain()
        await self._emptied(ends_s - time.monotonic())
        await self._cut_off()

    async def _cut_off(self) -> None:
        error = RequestError(Fault.UNAVAILABLE, "the gateway is stopping; ask again later")
        for link in list(self._links):
            link.cut_off(error)
        if not await self._emptied(self.settings.cancel_limit_s) and self.calls:
            log.warning(
                "%d gRPC calls did not end within %s s of being cancelled", self.calls, self.settings.cancel_limit_s
            )
        for link in list(self._links):
            link.abort()
        self._sockets.close()

    async def _emptied(self, limit_s: float) -> bool:
        """Wait until no connection and no call is left; False where that took longer than `limit_s`."""
        self._idle.clear()
        self._tell_idle()
        try:
            await asyncio.wait_for(self._idle.wait(), max(limit_s, 0.0))
        except TimeoutError:
            return False
        return True

    # ---- what connections ask --------------------------------------------------------------------------------------
    def enter(self, link: Link) -> bool:
        """A connection was made; False where there are too many. The oldest that does nothing gives way to it: else a
        few hundred sockets that are merely held open would shut everybody out."""
        if len(self._links) >= self.settings.max_connections:
            idle = next((each for each in self._links if each.idle), None)
            if idle is None:
                return False
            idle.drain("idle for longest while too many connect; connect again when needed")
        self._links[link] = None
        if self._stopping:  # its hands were shaken too late
            link.drain()
        return True

    def leave(self, link: Link) -> None:
        """A connection is gone."""
        self._links.pop(link, None)
        self._tell_idle()

    def incoming(self, rpc: Rpc) -> Incoming:
        """What puts messages of a method together."""
        limit_bytes, most_bytes = self.bounds(rpc)
        return Incoming(limit_bytes, self.room, self.codec.lead, most_bytes)

    def bounds(self, rpc: Rpc) -> tuple[int, Callable[[Raw], int] | None]:
        """Largest message of a method, and what says more once a message has begun."""
        if rpc.raw:
            return self.settings.max_message_bytes, self._service.reader.most_bytes
        return min(self.settings.max_other_bytes, self.settings.max_message_bytes), None

    def memory(self, size: int) -> memoryview:
        """Memory for a message, counted. Raises as `Room.take` does."""
        return self.room.take(size, self.codec.lead(size), filled=size)[0]

    def check_load(self, waiting_bytes: int) -> None:
        """Whether one more call is taken of a connection that has `waiting_bytes` of answers to take. OVERLOADED."""
        if self.calls >= self.settings.max_concurrent_calls:
            raise RequestError(
                Fault.OVERLOADED,
                f"{self.calls} calls are in progress, the most this gateway takes; try again later",
            )
        if waiting_bytes > self.settings.max_waiting_bytes:
            raise RequestError(
                Fault.OVERLOADED,
                f"{waiting_bytes} bytes of answers wait to be read on this connection; read them first",
            )

    def finished(self, _: object = None) -> None:
        """A call in progress has ended."""
        self.calls -= 1
        if self._stopping:
            self._tell_idle()

    def _tell_idle(self) -> None:
        if not (self.calls or self._links):
            self._idle.set()

    def _serve(self, listener: socket) -> None:
        guarded = self._context is not None and listener.family != AF_UNIX
        self._sockets.listen(listener, self._secure_wire if guarded else Wire)

    def _secure_wire(self, *connection: Any) -> SecureWire:
        context = cast("SSLContext", self._context)  # TLS stays on
        return SecureWire(context, self.settings.handshake_timeout_s, *connection)

    def _link(self) -> Link:
        return Link(self)
