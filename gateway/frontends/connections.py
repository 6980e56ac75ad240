"""Open connections of one server, divided among callers: if there are too many, an idle one is closed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from gateway.domain.shares import RefusalReason
from gateway.frontends.peer import Peer
from gateway.frontends.pools import Pool

FRUITLESS_S = 0.01
"""Pause before a caller without an idle connection is searched again.

A search examines all of its connections, and a refused caller may connect thousands of times a second.
"""
GIVE_WAY_S = 0.02
"""Mean pause between two connections of a caller that are closed in favour of its own next one.

A caller that opens every closed connection again would otherwise keep this server busy with that (decision 0024).
"""
GIVE_WAY_BURST = 16
"""Connections that give way in a row after a longer pause."""


class Yielding(Protocol):
    """Interface of a connection that can give up its place."""

    @property
    def idle(self) -> bool:
        """Return True if it could be closed without loss."""

    def give_way(self) -> None:
        """Close: another connection takes the place."""


C = TypeVar("C", bound=Yielding)


@dataclass(slots=True)
class _Caller(Generic[C]):
    """Connections of one caller, the oldest first.

    `fruitless_s`: time at which none of them was idle. `due_s`: time from which one may give way to another of its own.
    """

    local: dict[C, bool] = field(default_factory=dict)
    fruitless_s: float = -1.0
    due_s: float = -1.0


class ConnectionPlaces(Generic[C]):
    """Places of one server's connections. A place is held from `enter` to `leave`, or until it is given to another."""

    def __init__(self, pool: Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool, self._clock = pool, clock
        self._keys: dict[C, str] = {}
        self._callers: dict[str, _Caller[C]] = {}

    def __len__(self) -> int:
        """Return the number of connections with a place."""
        return len(self._keys)

    def enter(self, connection: C, peer: Peer) -> bool:
        """Give a place to a new connection. Return False, counted, if its caller or this server has too many."""
        key, local = peer.share_key, peer.local
        refusal = self._pool.take(key, local=local)
        if refusal is not None:
            idle = self._idle(key, local, refusal)
            if idle is None:
                self._pool.count(key, refusal)
                return False
            self.leave(idle)
            idle.give_way()
            self._pool.add(key, local=local)
        self._keys[connection] = key
        self._callers.setdefault(key, _Caller()).local[connection] = local
        return True

    def identify(self, connection: C, peer: Peer) -> bool:
        """Count a connection for the `peer` that its handshake identified. Return False if that caller has too many."""
        if self._keys.get(connection) == peer.share_key:
            return True
        self.leave(connection)
        return self.enter(connection, peer)

    def leave(self, connection: C) -> None:
        """Return the place of a connection that has ended. It may be called twice."""
        key = self._keys.pop(connection, None)
        if key is None:
            return
        caller = self._callers[key]
        self._pool.give(key, local=caller.local.pop(connection))
        if not caller.local:
            del self._callers[key]

    def _idle(self, key: str, local: bool, refusal: RefusalReason) -> C | None:
        """Return the oldest idle connection of this caller, else of the caller with most connections, or None.

        The second case applies only if this caller's share is not used up. A connection of a caller on this device is
        closed for another such caller only.
        """
        found = self._own_idle(key, local)
        if found is not None or refusal is RefusalReason.CALLER:
            return found
        others = [each for each, caller in self._callers.items() if local or not next(iter(caller.local.values()))]
        largest = max(others, key=lambda each: len(self._callers[each].local), default="")
        return None if largest == key else self._oldest_idle(largest, local)

    def _own_idle(self, key: str, local: bool) -> C | None:
        """Return the oldest idle connection of a caller that wants its place for another."""
        caller, now_s = self._callers.get(key), self._clock()
        if caller is None or now_s < caller.due_s:
            return None
        caller.due_s = max(caller.due_s, now_s - GIVE_WAY_BURST * GIVE_WAY_S) + GIVE_WAY_S
        return self._oldest_idle(key, local)

    def _oldest_idle(self, key: str, local: bool) -> C | None:
        caller, now_s = self._callers.get(key), self._clock()
        if caller is None or now_s - caller.fruitless_s < FRUITLESS_S:
            return None
        for connection, is_local in caller.local.items():
            if connection.idle and (local or not is_local):
                return connection
        caller.fruitless_s = now_s
        return None
