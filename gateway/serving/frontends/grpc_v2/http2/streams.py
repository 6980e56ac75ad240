"""Streams: the state of one by one table (RFC 9113, section 5.1), its windows and its waiting bytes.

Also what a connection keeps of all of them: its receive window, and the streams that it closed first.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError

OPEN, PEER_DONE, CLOSED = range(3)
"""States of a stream. Idle and closed streams are not kept.

PEER_DONE is the RFC's half-closed (remote). Half-closed (local) never occurs: a response that ends before its request
closes the stream by RST_STREAM (section 8.1).
"""
PEER_ENDS, WE_END, RESET = range(3)
KEPT_CLOSED = 1000
"""Number of streams closed by this side that are remembered."""

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


class ReceiveWindow:
    """Receive window. Bytes are processed at once, so the window is widened again when `left` is below `half` of it."""

    __slots__ = ("_most", "half", "left")

    def __init__(self, most_bytes: int) -> None:
        self.left = self._most = most_bytes
        self.half = most_bytes // 2

    def spend(self, length: int) -> int:
        """Count a DATA frame. Return the bytes by which to widen the window, usually 0.

        Raises ProtocolError FLOW_CONTROL_ERROR.
        """
        self.left -= length
        if self.left < 0:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        # Half: the peer still has the other half while WINDOW_UPDATE travels, and one is sent per many frames.
        if self.left >= self.half:
            return 0
        used, self.left = self._most - self.left, self._most
        return used


class ClosedStreams:
    """Numbers of the last KEPT_CLOSED streams that this side closed first.

    Frames that the peer sent before it knew are ignored, up to its own end of the stream (RFC 9113, section 5.1).
    """

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, number: int) -> None:
        """Remember a stream, and forget the oldest one if there are too many."""
        self._numbers[number] = None
        if len(self._numbers) > KEPT_CLOSED:
            del self._numbers[next(iter(self._numbers))]

    def ignores(self, number: int, ended: bool) -> bool:
        """Return True if a frame on this stream is ignored. `ended`: it is the peer's last one of the stream."""
        known = number in self._numbers
        if known and ended:
            del self._numbers[number]
        return known
