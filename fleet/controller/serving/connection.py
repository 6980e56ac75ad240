"""Connection of the server: connection limits, the peer's certificate in the scope, and sendfile without TLS."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import h11
from uvicorn.config import Config
from uvicorn.server import ServerState

from fleet.controller.serving.asgi import ZERO_COPY, Application, Message, Receive, Scope, Send, plain
from fleet.controller.serving.proxies import Proxies
from fleet.controller.serving.settings import ServingSettings
from gateway.common.domain.problem import retry_after
from gateway.common.timeouts import timeout
from gateway.common.wire.connection import BoundedConnection


@dataclass(frozen=True, slots=True)
class Shared:
    """State that all connections of a server share."""

    settings: ServingSettings
    proxies: Proxies
    counts: Counter[str]
    addresses: Counter[str] = field(default_factory=Counter)  # open connections per address


class _Extent:
    """Placeholder that h11 only counts; the kernel sends the bytes (h11, "Support for sendfile()")."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class ControllerConnection(BoundedConnection):
    """HTTP connection with limits per address and in total, in addition to the general bounds."""

    def __init__(self, config: Config, state: ServerState, shared: Shared) -> None:
        super().__init__(config, state, shared.settings, plain)
        self._shared, self._settings = shared, shared.settings
        self._application: Application = self.app
        self.app = self._call
        self._group = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the peer, or refuse it if there are too many connections."""
        super().connection_made(transport)
        self._group = self._shared.proxies.group(self.client[0] if self.client else "")
        self._shared.addresses[self._group] += 1
        theirs = self._shared.addresses[self._group] if self._group else 0
        too_many = len(self.connections) > self._settings.max_connections
        if too_many or theirs > self._settings.max_connections_per_address:
            self._shared.counts["connections_turned_away"] += 1
            self.turn_away(503, "too many connections; try again later", (retry_after(1.0),))
            return
        encrypted = transport.get_extra_info("ssl_object")
        self.app_state = {"client_certificate": encrypted.getpeercert(binary_form=True) if encrypted else None}

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the count."""
        super().connection_lost(exc)
        self._shared.addresses[self._group] -= 1
        if not self._shared.addresses[self._group]:
            del self._shared.addresses[self._group]

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the application, with the sendfile extension if there is no TLS.

        If it answers before the whole body is received, the answer is sent at once, and the rest of the body is
        discarded before the connection goes on or is closed: otherwise the peer would lose the answer to a reset.
        """
        unread = False

        async def sending(message: Message) -> None:
            nonlocal unread
            if message["type"] == ZERO_COPY:
                await self._send_file(message)
                message = {"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)}
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                unread = self.conn.their_state is h11.SEND_BODY
            await send({**message, "more_body": True} if unread else message)

        if self.scheme != "https":
            scope.setdefault("extensions", {})[ZERO_COPY] = {}
        await self._application(scope, receive, sending)
        if unread:
            await self._discard(receive)
            await send({"type": "http.response.body", "body": b""})

    async def _discard(self, receive: Receive) -> None:
        """Receive the rest of a body, or abort the connection after `body_timeout_s` or when the server stops."""
        try:
            async with timeout(self._settings.body_timeout_s):
                while (await receive()).get("more_body", False):
                    pass
        except (TimeoutError, asyncio.CancelledError):  # this is the task's outermost frame
            self.transport.abort()

    async def _send_file(self, message: Message) -> None:
        """Send part of a file in pieces; its size was announced by Content-Length. Send nothing for HEAD."""
        if self.scope["method"] == "HEAD":
            return
        await self.flow.drain()
        if self.cycle.disconnected:
            return
        self.conn.send_with_data_passthrough(h11.Data(data=_Extent(message["count"])))  # type: ignore[arg-type]
        offset, left = message["offset"], message["count"]
        while left and not self.transport.is_closing():
            count = min(left, self._settings.send_piece_bytes)
            sent = await self._send_piece(message["file"], offset, count)
            if not sent:
                self.transport.abort()  # the file was truncated, or the peer does not read
                return
            offset, left = offset + sent, left - sent

    async def _send_piece(self, file: object, offset: int, count: int) -> int:
        try:
            async with timeout(self._settings.write_timeout_s):
                return await self.loop.sendfile(self.transport, file, offset, count, fallback=False)  # type: ignore[arg-type]
        except (TimeoutError, OSError, RuntimeError):  # RuntimeError: the transport closes meanwhile
            return 0
