"""One HTTP/1.1 connection: uvicorn's h11 protocol with a limit on everything a peer can drag out, which puts the peer's
certificate into the scope, and lets the kernel send files where no TLS lies between."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fleet.problems import Problem, plain_problem, retry_after
from fleet.serving.asgi import ZERO_COPY, Application, Message, Receive, Scope, Send
from fleet.serving.proxies import Proxies, address_group
from fleet.serving.settings import ServingSettings


@dataclass(frozen=True, slots=True)
class Shared:
    """What all connections of a server have in common."""

    config: Config
    state: ServerState
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


class Connection(H11Protocol):
    """Beyond uvicorn's: bounds on connections, on headers, on a body nobody reads, on an answer nobody takes."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.config, shared.state, {})
        self._shared, self._settings = shared, shared.settings
        self._application: Application = self.app
        self.app = self._call
        self.lost = asyncio.Event()
        self._refused = False
        self._group = ""
        self._waiting: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the peer, or tell it that there are too many."""
        super().connection_made(transport)
        self._group = self._counted_as()
        self._shared.addresses[self._group] += 1
        if self._too_many():
            self._shared.counts["connections_turned_away"] += 1
            self._refused = True
            self._say(plain_problem(503, "too many connections; try again later", (retry_after(1.0),)))
            return
        encrypted = transport.get_extra_info("ssl_object")
        self.app_state = {"client_certificate": encrypted.getpeercert(binary_form=True) if encrypted else None}
        self._bound_waiting(self._settings.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers; who waits for the end sees `lost`."""
        super().connection_lost(exc)
        self._shared.addresses[self._group] -= 1
        if not self._shared.addresses[self._group]:
            del self._shared.addresses[self._group]
        self.lost.set()
        self._bound_waiting(None)
        self._bound_writing(None)

    def data_received(self, data: bytes) -> None:
        """Feed the parser; what is still incomplete afterwards has a deadline."""
        if not self._refused:
            super().data_received(data)
            self._watch()

    def on_response_complete(self) -> None:
        """A request answered before its body ended: the rest is read and thrown away, but not for ever."""
        super().on_response_complete()
        if self._draining():
            self._bound_waiting(self._settings.body_timeout_s)

    def pause_writing(self) -> None:
        """The peer does not take its answer."""
        super().pause_writing()
        self._bound_writing(self._settings.write_timeout_s)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        self._bound_writing(None)

    def send_400_response(self, msg: str) -> None:
        """What h11 cannot parse, or headers beyond the limit."""
        self._refused = True
        limit = self._settings.max_header_bytes
        self._say(plain_problem(400, f"this is no HTTP/1.1 request, or its headers exceed {limit} bytes"))

    def _unsupported_upgrade_warning(self) -> None:
        """An Upgrade that is not offered may be ignored (RFC 9110, 7.8): nothing to warn of."""

    def _counted_as(self) -> str:
        address = self.client[0] if self.client else ""
        return "" if not address or self._shared.proxies.trusts(address) else address_group(address)

    def _too_many(self) -> bool:
        theirs = self._shared.addresses[self._group] if self._group else 0
        everybody = len(self.connections) > self._settings.max_connections
        return everybody or theirs > self._settings.max_connections_per_address

    def _say(self, problem: Problem) -> None:
        body = problem.body()
        lines = [f"HTTP/1.1 {problem.status} Refused", f"content-type: {problem.media_type}", "connection: close"]
        lines += [f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in problem.headers)]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + body)
        self.transport.close()

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

    def _watch(self) -> None:
        if self.conn.their_state is h11.IDLE:
            limit_s: float | None = self._settings.header_timeout_s
        else:
            limit_s = self._settings.body_timeout_s if self._draining() else None
        # A deadline that runs is kept: more bytes must not buy more time.
        if limit_s is None or self._waiting is None:
            self._bound_waiting(limit_s)

    def _draining(self) -> bool:
        return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

    def _bound_waiting(self, limit_s: float | None) -> None:
        self._waiting = self._rearm(self._waiting, limit_s)

    def _bound_writing(self, limit_s: float | None) -> None:
        self._writing = self._rearm(self._writing, limit_s)

    def _rearm(self, timer: asyncio.TimerHandle | None, limit_s: float | None) -> asyncio.TimerHandle | None:
        if timer is not None:
            timer.cancel()
        return None if limit_s is None else self.loop.call_later(limit_s, self.transport.abort)
