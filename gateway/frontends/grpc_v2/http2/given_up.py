"""Streams that we closed first."""

from __future__ import annotations

from collections import deque

KEPT = 1000
"""Streams that are remembered."""


class GivenUp:
    """Numbers of the streams that we closed first, the last KEPT: what the peer sent before it knew is passed over
    (RFC 9113, section 5.1)."""

    def __init__(self) -> None:
        self._order, self._numbers = deque[int](), set[int]()

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def __len__(self) -> int:
        return len(self._order)

    def add(self, number: int) -> None:
        """Remember a stream, and forget the oldest one where there are too many."""
        if number in self._numbers:
            return
        if len(self._order) >= KEPT:
            self._numbers.discard(self._order.popleft())
        self._order.append(number)
        self._numbers.add(number)
