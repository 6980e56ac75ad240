"""Control frames of a whole connection: SETTINGS, PING, GOAWAY, PRIORITY, PUSH_PROMISE (RFC 9113, section 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.serving.frontends.grpc_v2.http2 import frames
from gateway.serving.frontends.grpc_v2.http2.errors import Code, ProtocolError
from gateway.serving.frontends.grpc_v2.http2.events import PingAcknowledged
from gateway.serving.frontends.grpc_v2.http2.guard import Guard
from gateway.serving.frontends.grpc_v2.http2.sender import Sender
from gateway.serving.frontends.grpc_v2.http2.shapes import check_shape
from gateway.serving.frontends.grpc_v2.http2.streams import Stream
from gateway.serving.frontends.grpc_v2.http2.work import REPLY_NS, WINDOW_NS, Meter


class Controls:
    """Reader of control frames. `settled` is set once the peer has sent its first SETTINGS."""

    def __init__(self, guard: Guard, sender: Sender, streams: Mapping[int, Stream], meter: Meter) -> None:
        self.settled = False
        self._guard, self._sender, self._streams, self._meter = guard, sender, streams, meter

    def read(self, kind: int, flags: int, number: int, payload: memoryview, now_ns: int) -> PingAcknowledged | None:
        """Apply a frame of KINDS and answer it. Return its event for the owner, or None. Raises ProtocolError."""
        if kind == frames.PUSH_PROMISE:
            raise ProtocolError(Code.PROTOCOL_ERROR, "a client cannot push")
        check_shape(kind, number, payload)
        if kind == frames.PING:
            if flags & frames.ACK:
                self._guard.control(now_ns)
                return PingAcknowledged(bytes(payload))
            self._guard.ping(now_ns, self._sender.frames)
            self._meter.ns += REPLY_NS
            self._sender.send_control(frames.frame(frames.PING, frames.ACK, 0, bytes(payload)))
            return None
        self._guard.control(now_ns)
        if kind == frames.SETTINGS:
            self._read_settings(flags, payload)
        return None

    def _read_settings(self, flags: int, payload: memoryview) -> None:
        if flags & frames.ACK:
            if payload:
                raise ProtocolError(Code.FRAME_SIZE_ERROR, "SETTINGS with ACK and a payload")
            return
        self.settled = True
        # First the ACK, then the frame size: both precede the DATA that the new windows allow (gRPC's C core checks).
        self._meter.ns += REPLY_NS
        self._sender.send_control(frames.frame(frames.SETTINGS, frames.ACK, 0))
        for identifier, value in sorted(frames.settings_in(payload).items(), reverse=True):
            self._meter.ns += REPLY_NS
            _APPLY.get(identifier, _ignore)(self, value)

    def _resize_windows(self, value: int) -> None:
        self._meter.ns += WINDOW_NS * len(self._streams)
        self._sender.resize_windows(list(self._streams.values()), value)

    def _bound_table(self, value: int) -> None:
        self._sender.bound_table(value)

    def _resize_frames(self, value: int) -> None:
        self._sender.resize_frames(value)

    def _enable_push(self, value: int) -> None:
        if value > 1:
            raise ProtocolError(Code.PROTOCOL_ERROR, f"SETTINGS_ENABLE_PUSH of {value}")


def _ignore(_controls: Controls, _value: int) -> None:
    """Ignore a setting that is unknown, or that has no meaning for a server (section 6.5.2)."""


_APPLY: Mapping[int, Callable[[Controls, int], None]] = {
    frames.INITIAL_WINDOW_SIZE: Controls._resize_windows,
    frames.HEADER_TABLE_SIZE: Controls._bound_table,
    frames.MAX_FRAME_SIZE: Controls._resize_frames,
    frames.ENABLE_PUSH: Controls._enable_push,
}
KINDS = frozenset({frames.SETTINGS, frames.PING, frames.GOAWAY, frames.PRIORITY, frames.PUSH_PROMISE})
