"""Streams that this side closed first."""

from __future__ import annotations

KEPT = 1000
"""Number of streams that are remembered."""


class ClosedStreams:
    """Numbers of the last KEPT streams that this side closed first.

    Frames that the peer sent before it knew are ignored, up to its own end of the stream (RFC 9113, section 5.1).
    """

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> None:
        """Remember a stream, and forget the oldest one if there are too many."""
        self._numbers[number] = None
        if len(self._numbers) > KEPT:
            del self._numbers[next(iter(self._numbers))]

    def ignores(self, number: int, ended: bool) -> bool:
        """Return True if a frame on this stream is ignored. `ended`: it is the peer's last one of the stream."""
        known = number in self._numbers
        if known and ended:
            del self._numbers[number]
        return known
