"""Admission of connections: a caller's share of them, and few of them for peers that will be refused anyway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import RequestResponseCycle
from uvicorn.server import ServerState

from gateway.common.wire.connection import BoundedConnection
from gateway.serving.frontends.connections import HALF_OPEN_S, ConnectionPlaces
from gateway.serving.frontends.http.bounds import STRANGERS_PART, Bounds, Refuse
from gateway.serving.frontends.peer import Peer, peer_of


class HttpConnection(BoundedConnection):
    """Connection with a bounded number, in addition to the limits of every port, and the peer in the scope's state."""

    def __init__(  # noqa: PLR0917  as HttpServer, which makes it
        self,
        config: Config,
        state: ServerState,
        settings: Bounds,
        refuse: Refuse,
        welcome: Callable[[Peer], bool],
        places: ConnectionPlaces[HttpConnection],
    ) -> None:
        super().__init__(config, state, settings, refuse.plain)
        self._most, self._welcome, self._places = settings.max_connections, welcome, places
        self._made_s = self._begun_s = self.loop.time()
        self.stranger, self.peer = False, Peer()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the peer, or answer that there are too many connections."""
        peer = self.peer = peer_of(transport)
        self.transport, self.share_key, self.stranger = transport, peer.share_key, not self._welcome(peer)
        if self._is_one_stranger_too_many() or not self._places.enter(self, peer):
            self.turn_away(503, "too many connections; try again later", (("retry-after", "1"),))
            return
        super().connection_made(transport)
        self.app_state = {"peer": peer}

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the place of the connection."""
        super().connection_lost(exc)
        self._places.leave(self)

    def data_received(self, data: bytes) -> None:
        """Note the time at which a request begins."""
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._begun_s = self.loop.time()
        super().data_received(data)

    def _is_one_stranger_too_many(self) -> bool:
        if not self.stranger:
            return False
        strangers = sum(cast("HttpConnection", other).stranger for other in self.connections)
        return strangers >= max(1, self._most // STRANGERS_PART)

    @property
    def half_open(self) -> bool:
        """Implement `Yielding.half_open`."""
        began = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
        waits = began and self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE} and not self.conn.behind
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if self.flow.read_paused or (cycle is not None and cycle.waiting_for_100_continue):
            return False  # this server lets it wait
        return waits and self.loop.time() - self._begun_s > HALF_OPEN_S

    @property
    def idle(self) -> bool:
        """Return True if no request is under way, and the peer had time to begin one."""
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]:
            return False
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return self.loop.time() - self._made_s > HALF_OPEN_S if cycle is None else cycle.response_complete

    def give_way(self) -> None:
        """Implement `Yielding.give_way`: close in favour of another connection."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if not self.half_open:
            self.transport.close()
            return
        if cycle is not None and (until_sent := cycle.scope["state"].get("until_sent")):
            until_sent.close()  # the request's place is free at once, not after its task has noticed the end
        self.transport.abort()
