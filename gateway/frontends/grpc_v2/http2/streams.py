"""One stream: its state by one table (RFC 9113, section 5.1), its windows in both directions, and its waiting bytes."""

from __future__ import annotations

from collections import deque
from typing import Any

OPEN, PEER_DONE, CLOSED = range(3)
"""States of a stream. Idle and closed streams are not kept.

PEER_DONE is the RFC's half-closed (remote). Half-closed (local) never occurs: a response that ends before its request
closes the stream by RST_STREAM (section 8.1).
"""
PEER_ENDS, WE_END, RESET = range(3)

MOVES: tuple[tuple[int, int, int], ...] = (
    # PEER_ENDS, WE_END, RESET
    (PEER_DONE, CLOSED, CLOSED),  # OPEN
    (CLOSED, CLOSED, CLOSED),  # PEER_DONE: a peer that sends more after its end breaks a rule and loses the stream
    (CLOSED, CLOSED, CLOSED),  # CLOSED
)


class Stream:
    """State of one stream.

    `headers`: the request's headers as the owner reads them. `call`: any other object of the owner. `begun`: response
    headers were sent on their own. `announced`: bytes of the request's content-length that are still to come. Windows
    are bytes; they are negative after the peer shrank them.
    """

    __slots__ = (
        "announced",
        "begun",
        "call",
        "headers",
        "id",
        "opened_ns",
        "receive_window",
        "send_window",
        "state",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, number: int, headers: Any, opened_ns: int, receive_window: int, send_window: int) -> None:
        self.id, self.headers, self.opened_ns = number, headers, opened_ns
        self.state, self.begun = OPEN, False
        self.receive_window, self.send_window = receive_window, send_window
        self.waiting: deque[memoryview | Ending] | None = None
        self.waiting_bytes = 0
        self.call: Any = None
        self.announced: int | None = None


class Ending:
    """End of a response, after its data: a block of trailers."""

    __slots__ = ("trailers",)

    def __init__(self, trailers: bytes) -> None:
        self.trailers = trailers
