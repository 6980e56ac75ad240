"""Receive window of a connection: the bytes that the peer may send over all streams (RFC 9113, section 5.2)."""

from __future__ import annotations

from gateway.frontends.grpc_v2.http2.errors import Code, ProtocolError


class ReceiveWindow:
    """Receive window. Bytes are processed at once, so the window is widened again when half of it is used."""

    __slots__ = ("_left", "_most")

    def __init__(self, most_bytes: int) -> None:
        self._left = self._most = most_bytes

    def spend(self, length: int) -> int:
        """Count a DATA frame. Return the bytes by which to widen the window, usually 0.

        Raises ProtocolError FLOW_CONTROL_ERROR.
        """
        self._left -= length
        if self._left < 0:
            raise ProtocolError(Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
        if self._left >= self._most // 2:
            return 0
        used, self._left = self._most - self._left, self._most
        return used
