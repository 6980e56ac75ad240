"""Bytes that wait for a peer to take them, uncopied."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable
from typing import Any

PIECES_LIMIT = 64
"""Most pieces that one system call writes (IOV_MAX is 1024)."""


class SendQueue:
    """Queue of pieces. `size` is the sum of their bytes."""

    __slots__ = ("pieces", "size")

    def __init__(self) -> None:
        self.pieces: deque[memoryview] = deque()
        self.size = 0

    def __bool__(self) -> bool:
        return bool(self.pieces)

    def add(self, pieces: Iterable[Any]) -> None:
        """Add pieces at the end of the queue."""
        for piece in pieces:
            view = memoryview(piece)
            if view:
                self.pieces.append(view)
                self.size += len(view)

    def clear(self) -> None:
        """Drop everything."""
        self.pieces.clear()
        self.size = 0

    def send(self, connected: socket.socket) -> None:
        """Send what the socket accepts at once. Raises OSError."""
        pieces = self.pieces
        sent = connected.sendmsg([pieces[index] for index in range(min(PIECES_LIMIT, len(pieces)))])
        self.size -= sent
        while sent:
            first = pieces.popleft()
            if sent < len(first):
                pieces.appendleft(first[sent:])
                return
            sent -= len(first)
