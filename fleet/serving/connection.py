"""Who may connect, and what a connection offers: the peer's certificate in the scope, and files that the kernel sends
where no TLS lies between."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import h11
from uvicorn.config import Config
from uvicorn.server import ServerState

from fleet.problems import retry_after
from fleet.serving.asgi import ZERO_COPY, Application, Message, Receive, Scope, Send, plain
from fleet.serving.proxies import Proxies
from fleet.serving.settings import ServingSettings
from gateway.wire.connection import BoundedConnection


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a server have in common."""

    settings: ServingSettings
    proxies: Proxies
    counts: Counter[str]
    addresses: Counter[str] = field(default_factory=Counter)  # open connections of each


class _Extent:
    """Bytes that h11 only counts; the kernel sends them (h11's documentation, "Support for sendfile()")."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count


class Connection(BoundedConnection):
    """Beyond what is bounded on every port: how many there may be, of one address and in all."""

    def __init__(self, config: Config, state: ServerState, shared: Shared) -> None:
        super().__init__(config, state, shared.settings, plain)
        self._shared, self._settings = shared, shared.settings
        self._application: Application = self.app
        self.app = self._call
        self._group = ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the peer, or tell it that there are too many."""
        super().connection_made(transport)
        self._group = self._counted_as()
        self._shared.addresses[self._group] += 1
        if self._too_many():
            self._shared.counts["connections_turned_away"] += 1
            self.turn_away(503, "too many connections; try again later", (retry_after(1.0),))
            return
        encrypted = transport.get_extra_info("ssl_object")
        self.app_state = {"client_certificate": encrypted.getpeercert(binary_form=True) if encrypted else None}

    def connection_lost(self, exc: Exception | None) -> None:
        """It counts no longer."""
        super().connection_lost(exc)
        self._shared.addresses[self._group] -= 1
        if not self._shared.addresses[self._group]:
            del self._shared.addresses[self._group]

    def _counted_as(self) -> str:
        return self._shared.proxies.group(self.client[0] if self.client else "")

    def _too_many(self) -> bool:
        theirs = self._shared.addresses[self._group] if self._group else 0
        everybody = len(self.connections) > self._settings.max_connections
        return everybody or theirs > self._settings.max_connections_per_address

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, with what this connection offers beyond uvicorn's."""
        if self.scheme == "https":
            await self._application(scope, receive, send)
            return

        async def sending(message: Message) -> None:
            if message["type"] == ZERO_COPY:
                await self._send_file(message)
                message = {"type": "http.response.body", "body": b"", "more_body": message.get("more_body", False)}
            await send(message)

        scope.setdefault("extensions", {})[ZERO_COPY] = {}
        await self._application(scope, receive, sending)

    async def _send_file(self, message: Message) -> None:
        """Part of a file, whose bytes Content-Length announced; each piece in its time. No GET: nothing."""
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
                self.transport.abort()  # the file is shorter than it was, or the peer does not take it
                return
            offset, left = offset + sent, left - sent

    async def _send_piece(self, file: object, offset: int, count: int) -> int:
        try:
            async with asyncio.timeout(self._settings.write_timeout_s):
                return await self.loop.sendfile(self.transport, file, offset, count, fallback=False)  # type: ignore[arg-type]
        except (TimeoutError, OSError, RuntimeError):  # RuntimeError: the transport closes meanwhile
            return 0
