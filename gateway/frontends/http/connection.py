"""One HTTP/1.1 connection: uvicorn's h11 protocol, with a time limit on everything a peer can drag out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from gateway.frontends.http.bounds import Answer, Bounds, Refuse
from gateway.frontends.peer import Peer, peer_of

STRANGERS_PART = 4
"""Peers that will be refused anyway get a quarter of the connections, beside those of the others: enough to be told so,
and not enough to keep the others out."""


class Connection(H11Protocol):
    """Beyond uvicorn's: bounds on connections, on headers, on a body nobody reads, on an answer nobody takes."""

    def __init__(
        self, config: Config, state: ServerState, settings: Bounds, refuse: Refuse, welcome: Callable[[Peer], bool]
    ) -> None:
        super().__init__(config, state, {})
        self._settings, self._refuse, self._welcome = settings, refuse, welcome
        self.stranger = False
        self.lost = asyncio.Event()
        self._refused = False
        self._waiting: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the peer, or tell it that there are too many."""
        peer = peer_of(transport)
        self.stranger = not self._welcome(peer)
        alike = sum(cast("Connection", other).stranger == self.stranger for other in self.connections)
        most = self._settings.max_connections
        if alike >= (max(1, most // STRANGERS_PART) if self.stranger else most):
            self._turn_away(transport)
            return
        super().connection_made(transport)
        self.app_state = {"peer": peer}
        self._bound_waiting(self._settings.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the timers; who waits for the end sees `lost`."""
        super().connection_lost(exc)
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
        limit = self._settings.max_header_bytes
        self._say(self._refuse.plain(400, f"this is no HTTP/1.1 request, or its headers exceed {limit} bytes"))

    def _unsupported_upgrade_warning(self) -> None:
        """An Upgrade that is not offered may be ignored (RFC 9110, 7.8): nothing to warn of."""

    def _turn_away(self, transport: asyncio.Transport) -> None:
        self._refused = True
        self.transport = transport
        self._say(self._refuse.plain(503, "too many connections; try again later", (("retry-after", "1"),)))

    def _say(self, answer: Answer) -> None:
        lines = [f"HTTP/1.1 {answer.status} Refused", f"content-type: {answer.media_type}", "connection: close"]
        lines += [f"content-length: {len(answer.body)}", *(f"{name}: {value}" for name, value in answer.headers)]
        self.transport.write("\r\n".join([*lines, "", ""]).encode() + answer.body)
        self.transport.close()

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
