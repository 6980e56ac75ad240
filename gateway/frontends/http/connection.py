"""Who may connect: peers that will be refused anyway do not keep the others out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from gateway.frontends.http.bounds import STRANGERS_PART, Bounds, Refuse
from gateway.frontends.peer import Peer, peer_of
from gateway.wire.connection import BoundedConnection


class Connection(BoundedConnection):
    """Beyond what is bounded on every port: how many there may be, and the peer in the scope's state."""

    def __init__(
        self, config: Config, state: ServerState, settings: Bounds, refuse: Refuse, welcome: Callable[[Peer], bool]
    ) -> None:
        super().__init__(config, state, settings, refuse.plain)
        self._most, self._welcome = settings.max_connections, welcome
        self.stranger = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the peer, or tell it that there are too many."""
        peer = peer_of(transport)
        self.stranger = not self._welcome(peer)
        alike = sum(cast("Connection", other).stranger == self.stranger for other in self.connections)
        if alike >= (max(1, self._most // STRANGERS_PART) if self.stranger else self._most):
            self.transport = transport
            self.turn_away(503, "too many connections; try again later", (("retry-after", "1"),))
            return
        super().connection_made(transport)
        self.app_state = {"peer": peer}
