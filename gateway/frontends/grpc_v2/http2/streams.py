"""One stream: its state by one table (RFC 9113, section 5.1), its windows both ways, what waits to be said."""

from __future__ import annotations

from collections import deque
from typing import Any

OPEN, PEER_DONE, CLOSED = range(3)
"""Idle and closed streams are not kept. PEER_DONE is the RFC's half-closed (remote); half-closed (local) never is: a
response that ends before its request closes the stream by RST_STREAM (section 8.1)."""
PEER_ENDS, WE_END, RESET = range(3)

MOVES: tuple[tuple[int, int, int], ...] = (
    # PEER_ENDS, WE_END, RESET
    (PEER_DONE, CLOSED, CLOSED),  # OPEN
    (CLOSED, CLOSED, CLOSED),  # PEER_DONE: a peer that says more after its end breaks a rule, which costs it the stream
    (CLOSED, CLOSED, CLOSED),  # CLOSED
)


class Stream:
    """`head` is what the owner read of the request's headers, `call` whatever else it keeps; `begun` once
    response headers were said on their own. `announced` is the number of bytes that the request's content-length still
    announces. Windows are bytes, negative
    once the peer shrank them."""

    __slots__ = (
        "announced",
        "begun",
        "call",
        "head",
        "id",
        "opened_ns",
        "receive_window",
        "send_window",
        "state",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, number: int, head: Any, opened_ns: int, receive_window: int, send_window: int) -> None:
        self.id, self.head, self.opened_ns = number, head, opened_ns
        self.state, self.begun = OPEN, False
        self.receive_window, self.send_window = receive_window, send_window
        self.waiting: deque[memoryview | Ending] | None = None
        self.waiting_bytes = 0
        self.call: Any = None
        self.announced: int | None = None


class Ending:
    """The end of what we say on a stream, behind its data: a block of trailers."""

    __slots__ = ("trailers",)

    def __init__(self, trailers: bytes) -> None:
        self.trailers = trailers
