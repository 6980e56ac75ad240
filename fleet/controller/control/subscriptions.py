"""Open streams of changes on one replica.

One thread reads new changes for all of them; a waiting stream costs no thread and no statement.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from itertools import takewhile

from fleet.controller.control.changes import Change, ChangePage, ChangeReader, Position
from fleet.controller.control.settings import ChangesSettings
from fleet.controller.database import tokens
from fleet.controller.database.engine import Database
from fleet.controller.problems import ProblemError
from gateway.common.domain.errors import Fault, RequestError
from gateway.common.timeouts import wait_for

TURNED_AWAY = "streams_turned_away"


class ChangeStream:
    """One open stream. It is ended if its token becomes invalid, or the controller stops."""

    def __init__(self, token: int) -> None:
        """Create it in the event loop that serves the stream."""
        self.token, self._ended = token, False
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Event()

    def has_ended(self) -> bool:
        """Return whether the stream has ended."""
        return self._ended

    def expect(self) -> None:
        """Clear the notification: the changes that it announced are read now."""
        self._news.clear()

    async def wait(self, limit_s: float) -> None:
        """Wait for a notification or the end, at most `limit_s`."""
        if not self._ended:
            with suppress(TimeoutError):
                await wait_for(self._news.wait(), limit_s)

    def notify(self, *, end: bool = False) -> None:
        """Wake the stream up, from any thread. A closed event loop has no streams left."""
        self._ended = self._ended or end
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news.set)


class Subscriptions:
    """All open streams of a replica. Streams run in the event loop, `tick` runs in its own thread."""

    def __init__(self, database: Database, settings: ChangesSettings, counts: Counter[str]) -> None:
        self.feed, self.settings = ChangeReader(database, settings.page_changes), settings
        self._database, self._counts = database, counts
        self._lock = threading.Lock()
        self._open: set[ChangeStream] = set()
        self._stopped = False
        self._recent: deque[Change] = deque()
        self._begin: Position | None = None
        self._reached = Position(0)

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._open)

    def open(self, token: int) -> ChangeStream:
        """Admit a stream of this API token. Raise RequestError OVERLOADED, UNAVAILABLE; ProblemError 429."""
        subscription = ChangeStream(token)
        with self._lock:
            settings = self.settings
            if self._stopped:
                raise RequestError(Fault.UNAVAILABLE, "the controller is stopping; ask again later")
            if sum(one.token == token for one in self._open) >= settings.streams_per_caller:
                self._counts[TURNED_AWAY] += 1
                problem = f"{settings.streams_per_caller} streams of this token are open; end one of them first"
                raise ProblemError(429, problem, retry_after_s=settings.refused_retry_s)
            if len(self._open) >= settings.streams_limit:
                self._counts[TURNED_AWAY] += 1
                problem = f"{settings.streams_limit} streams are open on this replica; try again later"
                raise RequestError(Fault.OVERLOADED, problem, retry_after_s=settings.refused_retry_s)
            self._open.add(subscription)
        return subscription

    def close(self, subscription: ChangeStream) -> None:
        """Free the place of a stream."""
        with self._lock:
            self._open.discard(subscription)

    def recent(self, after: Position) -> ChangePage | None:
        """Return the page after `after`, or None if memory does not hold all of it."""
        with self._lock:
            if self._begin is None or not self._begin <= after <= self._reached:
                return None
            found = [*takewhile(lambda change: change.position > after, reversed(self._recent))]
            return ChangePage(found[::-1], self._reached, more=False)

    def tick(self, now: datetime) -> None:
        """Read new changes, and end streams of invalid tokens, if any stream is open. Raise AwayError."""
        with self._lock:
            streams = [*self._open]
            if not streams:
                self._begin = None
                self._recent.clear()
        if not streams:
            return
        with self._database.glance() as connection:
            valid = tokens.valid(connection, {stream.token for stream in streams}, now)
        for stream in streams:
            if stream.token not in valid:
                stream.notify(end=True)
        if self._begin is None:
            self._remember((), self.feed.now(), fresh=True)
        more = True
        while more and not self._stopped:
            page = self.feed.read(self._reached)
            self._remember(page.changes, page.reached)
            more = page.more

    def _remember(self, found: Sequence[Change], reached: Position, *, fresh: bool = False) -> None:
        with self._lock:
            self._recent.extend(found)
            self._begin = reached if fresh else self._begin
            self._reached = reached
            while len(self._recent) > self.settings.recent_changes:
                self._begin = self._recent.popleft().position
            streams = [*self._open] if found or fresh else []
        for stream in streams:
            stream.notify()

    def stop(self) -> None:
        """End all streams and admit no more."""
        with self._lock:
            self._stopped = True
            streams = [*self._open]
        for stream in streams:
            stream.notify(end=True)
