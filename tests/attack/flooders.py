"""Many connections of one host. Each sends endlessly at the rate of the link, and reconnects when it is closed."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Callable, Iterator, Sequence

from tests.attack.attacker import Pace
from tests.attack.rig import Target
from tests.attack.transport import WOULD_BLOCK, connected

CONNECTIONS, PROCESSES = 128, 2
PART_BYTES = 16 * 1024
"""Fewest bytes that wait for the socket."""
MOST_EVENTS = 100
TIMEOUT_S = 30.0
Words = Callable[[], Iterator[bytes]]
"""Return what one connection sends."""


class Flooder:
    """One connection. It discards what it receives."""

    def __init__(self, target: Target, address: str, words: Words) -> None:
        self.socket = connected(target, address, TIMEOUT_S)
        self.socket.setblocking(False)
        self._words, self._waiting = words(), b""

    def send(self) -> int:
        """Send what the socket accepts. Return the number of bytes. Raise OSError."""
        while len(self._waiting) < PART_BYTES:
            self._waiting += b"".join(itertools.islice(self._words, MOST_EVENTS))
        try:
            sent = self.socket.send(self._waiting)
        except WOULD_BLOCK:
            return 0
        self._waiting = self._waiting[sent:]
        return sent

    def read(self) -> None:
        """Read. Raise OSError, also at the end of the stream."""
        try:
            if not self.socket.recv(1 << 16):
                raise ConnectionAbortedError
        except WOULD_BLOCK:
            pass


def flood(target: Target, address: str, ends_s: float, floods: Sequence[Words]) -> int:
    """Send these floods, each on its share of the connections, until `ends_s`. Return the number of bytes sent."""
    pace, endless = Pace(target), itertools.cycle(floods)
    flooders, poll = dict[int, Flooder](), select.epoll()
    while time.monotonic() < ends_s:
        if len(flooders) < CONNECTIONS // PROCESSES:
            try:
                flooder = Flooder(target, address, next(endless))
            except OSError:
                continue  # refused: the caller's share is used up
            flooders[flooder.socket.fileno()] = flooder
            poll.register(flooder.socket, select.EPOLLIN | select.EPOLLOUT)
            continue
        for descriptor, events in poll.poll(0.1):
            try:
                if events & ~select.EPOLLOUT:
                    flooders[descriptor].read()
                pace.sent(flooders[descriptor].send())
            except OSError:
                flooders.pop(descriptor).socket.close()
    return pace.sent_bytes
