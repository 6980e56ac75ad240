"""Turns of one port's HTTP connections: long parsing waits, so that the event loop is free for other work."""

from __future__ import annotations

import asyncio
import time

from gateway.wire.connection_schedule import ConnectionSchedule, ScheduledConnection

BUDGET_NS = 2_000_000
"""Time for parsing connections in one pass of the event loop."""


class ReadQueue:
    """Connections of one port that wait to be parsed, on their event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.turns = ConnectionSchedule()
        self._until_ns = 0
        self._timed = self._called = False

    def has_time(self) -> bool:
        """Return True if a connection may be parsed in this pass of the event loop: none waits, and time is left."""
        if self.turns.waiting:
            return False
        now_ns = time.monotonic_ns()
        if not self._timed:
            self._timed, self._until_ns = True, now_ns + BUDGET_NS
            self._loop.call_soon(self._begin_turn)
        return now_ns < self._until_ns

    def wait(self, turn: ScheduledConnection) -> None:
        """Let a connection wait for its turn."""
        self.turns.add(turn)
        if not self._called:
            self._called = True
            self._loop.call_soon(self._serve)

    def _begin_turn(self) -> None:
        self._timed = False

    def _serve(self) -> None:
        self._called, left_ns = False, BUDGET_NS
        while self.turns.waiting and left_ns > 0:
            left_ns -= self.turns.serve()
        if self.turns.waiting and not self._called:
            self._called = True
            self._loop.call_soon(self._serve)
