"""Timers of routes whose samples wait: for earlier ones, or for the end of their session."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from gateway.frontends.mqtt.inbound.decoder import RouteDecoder

LEAST_S = 0.01
"""Least time between two expiries of a route, so that those of many sensors are handled together."""


class ExpiryTimers:
    """One timer for each route. `expire` is called with the route and the monotonic time when samples are due.

    A route that is held has no timer: its windows are in use. `since` returns the monotonic time since which messages
    can come, None if they cannot: samples wait for others only while a connection could bring them.
    """

    def __init__(self, expire: Callable[[RouteDecoder, int], None], since: Callable[[], int | None]) -> None:
        self._expire, self._since = expire, since
        self._timers: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        """Timer of each route, with the monotonic time at which its samples are due."""
        self._held: set[str] = set()
        self._closed = False

    def is_held(self, feed: RouteDecoder) -> bool:
        """Return True if the route is held."""
        return feed.route.name in self._held

    def hold(self, feed: RouteDecoder) -> None:
        """Let nothing expire until `release`."""
        self._held.add(feed.route.name)

    def release(self, feed: RouteDecoder) -> None:
        """Take back a `hold`."""
        self._held.discard(feed.route.name)
        self.set(feed)

    def set(self, feed: RouteDecoder) -> None:
        """Set the timer of a route if its samples wait, unless it has one that is as early."""
        name = feed.route.name
        if self._closed or name in self._held or (due_ns := self._due_ns(feed)) is None:
            return
        if name in self._timers:
            known_ns, timer = self._timers[name]
            if known_ns <= due_ns:
                return
            timer.cancel()
        wait_s = max(LEAST_S, (due_ns - time.monotonic_ns()) / 1e9)
        self._timers[name] = due_ns, asyncio.get_running_loop().call_later(wait_s, self._due, feed)

    def close(self) -> None:
        """Cancel all timers, and set none any more."""
        self._closed = True
        for _, timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _due(self, feed: RouteDecoder) -> None:
        del self._timers[feed.route.name]
        now_ns, due_ns = time.monotonic_ns(), self._due_ns(feed)
        if not self.is_held(feed) and due_ns is not None and due_ns <= now_ns:
            self._expire(feed, now_ns)
        self.set(feed)

    def _due_ns(self, feed: RouteDecoder) -> int | None:
        """Return when samples are due; without a connection as late as if one began now."""
        due_ns, since_ns = feed.due_ns(), self._since()
        if due_ns is None:
            return None
        began_ns = time.monotonic_ns() if since_ns is None else since_ns
        return max(due_ns, began_ns + feed.waiting_ns)
