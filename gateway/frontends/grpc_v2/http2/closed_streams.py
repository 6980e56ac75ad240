"""Streams that this side closed first."""

from __future__ import annotations

from collections import deque

KEPT = 1000
"""Number of streams that are remembered."""


class ClosedStreams:
    """Numbers of the last KEPT streams that this side closed first.

    Frames that the peer sent before it knew are ignored (RFC 9113, section 5.1).
    """

    def __init__(self) -> None:
        self._order, self._numbers = deque[int](), set[int]()

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def __len__(self) -> int:
        return len(self._order)

    def add(self, number: int) -> None:
        """Remember a stream, and forget the oldest one if there are too many."""
        if number in self._numbers:
            return
        if len(self._order) >= KEPT:
            self._numbers.discard(self._order.popleft())
        self._order.append(number)
        self._numbers.add(number)
