"""What a connection tells its owner."""

from __future__ import annotations

from gateway.frontends.grpc_v2.http2.streams import Stream


class Opened:
    """A peer opened a stream. `ended`: nothing follows its headers."""

    __slots__ = ("ended", "stream")

    def __init__(self, stream: Stream, ended: bool) -> None:
        self.stream, self.ended = stream, ended


class Received:
    """Bytes of a stream's body, lent until the next `receive`. `ended`: they were the last."""

    __slots__ = ("ended", "payload", "stream")

    def __init__(self, stream: Stream, payload: memoryview, ended: bool) -> None:
        self.stream, self.payload, self.ended = stream, payload, ended


class Requested:
    """A whole request at once: a stream was opened and ended, and `payload` is all of its body. Said in place of Opened
    and Received where one read held both frames; lent like theirs."""

    __slots__ = ("payload", "stream")

    def __init__(self, stream: Stream, payload: memoryview) -> None:
        self.stream, self.payload = stream, payload


class Dropped:
    """A stream was closed before we had said its end: the peer reset it, or broke its rules."""

    __slots__ = ("stream",)

    def __init__(self, stream: Stream) -> None:
        self.stream = stream


class Acknowledged:
    """The peer answered our PING of these eight bytes."""

    __slots__ = ("payload",)

    def __init__(self, payload: bytes) -> None:
        self.payload = payload


Event = Requested | Opened | Received | Dropped | Acknowledged
