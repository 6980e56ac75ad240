"""Events of a connection for its owner."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.serving.frontends.grpc_v2.http2.streams import Stream


class StreamOpened:
    """A stream that the peer opened. `ended`: nothing follows its headers."""

    __slots__ = ("ended", "stream")

    def __init__(self, stream: Stream, ended: bool) -> None:
        self.stream, self.ended = stream, ended


class DataReceived:
    """Parts of a stream's body, lent until the next `receive`. `ended`: they were the last."""

    __slots__ = ("ended", "parts", "stream")

    def __init__(self, stream: Stream, parts: Sequence[memoryview], ended: bool) -> None:
        self.stream, self.parts, self.ended = stream, parts, ended


class RequestReceived:
    """A whole request: a stream was opened and ended, and `payload` is all of its body.

    It replaces StreamOpened and DataReceived if one read contained both frames. `payload` is lent like theirs.
    """

    __slots__ = ("payload", "stream")

    def __init__(self, stream: Stream, payload: memoryview) -> None:
        self.stream, self.payload = stream, payload


class StreamDropped:
    """A stream that was closed before its response ended: the peer reset it, or broke its rules."""

    __slots__ = ("stream",)

    def __init__(self, stream: Stream) -> None:
        self.stream = stream


class PingAcknowledged:
    """The peer's answer to a PING with these eight bytes."""

    __slots__ = ("payload",)

    def __init__(self, payload: bytes) -> None:
        self.payload = payload


Event = RequestReceived | StreamOpened | DataReceived | StreamDropped | PingAcknowledged
