"""Open connections of one server, divided among callers: if too many, an idle or half-open one is closed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Generic, Protocol, TypeVar

from gateway.serving.domain.shares import RefusalReason, network_key
from gateway.serving.frontends.peer import Peer
from gateway.serving.frontends.pools import Pool

FRUITLESS_S = 0.01
"""Pause before a caller without an idle connection is searched again.

A search examines all of its connections, and a refused caller may connect thousands of times a second.
"""
GIVE_WAY_S = 0.02
"""Mean pause between two connections of a caller that are closed in favour of its own next one.

A caller that opens every closed connection again would otherwise keep this server busy with that (decision 0024).
"""
SEARCHED = 8
"""Callers that are searched for a connection that gives way, those with most connections first."""
HALF_OPEN_S = 1.0
"""Age from which a request that has not arrived whole makes its connection give way if there are too many."""
GIVE_WAY_BURST = 16
"""Connections that give way in a row after a longer pause."""


class Yielding(Protocol):
    """Interface of a connection that can give up its place."""

    @property
    def idle(self) -> bool:
        """Return True if it could be closed without loss."""

    @property
    def half_open(self) -> bool:
        """Return True if it serves nothing but requests that began `HALF_OPEN_S` ago and have not arrived whole."""

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
            if not self.make_room(key, local, refusal):
                self._pool.count(key, refusal)
                return False
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

    def make_room(self, key: str, local: bool, refusal: RefusalReason, *, half_open: bool = False) -> bool:
        """Close the oldest connection of this caller, or of those with most, that gives way. Return False if none.

        The second case applies only if this caller's share is not used up. A connection of a caller on this device is
        closed for another such caller only, one of an identified caller for another identified one, and within a
        network only those of the network. `half_open`: no idle one is closed.
        """
        own, network = self._own(key, local, half_open), network_key(key)
        # a half-open one may be of a caller that a busy machine delays: those of callers with more give way first
        found = own if own is None or own.idle or refusal is RefusalReason.CALLER else None
        if found is None and refusal is not RefusalReason.CALLER:
            wide = refusal is not RefusalReason.NETWORK
            others = [
                each
                for each, caller in self._callers.items()
                if (local or not next(iter(caller.local.values())))
                and (not network or (wide and network_key(each)) or network_key(each) == network)
            ]
            for other in nlargest(SEARCHED, others, key=lambda each: len(self._callers[each].local)):
                if other == key:
                    found, half_open = found or own, True  # idle ones of callers with fewer connections are kept
                else:
                    found = found or self._oldest(other, local, half_open)
        found = found or own
        if found is None:
            return False
        self.leave(found)
        found.give_way()
        return True

    def _own(self, key: str, local: bool, half_open: bool) -> C | None:
        """Return the oldest connection of a caller that gives way to another of its own."""
        caller, now_s = self._callers.get(key), self._clock()
        if caller is None or now_s < caller.due_s:
            return None
        caller.due_s = max(caller.due_s, now_s - GIVE_WAY_BURST * GIVE_WAY_S) + GIVE_WAY_S
        return self._oldest(key, local, half_open)

    def _oldest(self, key: str, local: bool, half_open: bool) -> C | None:
        """Return the oldest idle connection of a caller, else the oldest half-open one."""
        waiting = None
        caller, now_s = self._callers.get(key), self._clock()
        if caller is None or now_s - caller.fruitless_s < FRUITLESS_S:
            return None
        for connection, is_local in caller.local.items():
            if local or not is_local:
                if connection.idle and not half_open:
                    return connection
                if waiting is None and connection.half_open:
                    waiting = connection
        if waiting is None:
            caller.fruitless_s = now_s
        return waiting
