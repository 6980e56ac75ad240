"""TLS transport of the gRPC server: OpenSSL between two memory buffers (`ssl.MemoryBIO`)."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, cast

from gateway.serving.frontends.grpc_v2.http2.reader import NOTHING
from gateway.serving.frontends.grpc_v2.transport.listening_socket import SocketProtocol
from gateway.serving.frontends.grpc_v2.transport.sockets import Sockets, SocketTransport

JOINED_BYTES = 16 * 1024
"""Size up to which pieces are joined to one TLS record, the largest there is (RFC 8446, section 5.1)."""
HANDSHAKE_NS = 700_000
"""Cost of a step of a handshake: nearly all of it is the signature (RSA of 2048 bits)."""
RECORD_NS = 2_000
"""Cost of a record, independent of its size."""


class TlsTransport(SocketTransport):
    """TLS connection. The protocol gets it after the handshake; a longer handshake than `limit_s` is aborted."""

    def __init__(  # noqa: PLR0917  as SocketTransport, with two more
        self,
        context: ssl.SSLContext,
        limit_s: float,
        sockets: Sockets,
        connected: Any,
        name: Any,
        protocol: SocketProtocol,
    ) -> None:
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_side=True)
        self._handshake_done, self._limit_s = False, limit_s
        self._records = 0
        super().__init__(sockets, connected, name, protocol)

    def write(self, data: Any) -> None:
        """Encrypt and send."""
        if data and not self.is_closing():
            self._tls.write(data)
            self._send_encrypted()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        """Encrypt and send several pieces, with small ones joined."""
        if self.is_closing():
            return
        pieces = list(list_of_data)
        if len(pieces) > 1 and sum(map(len, pieces)) <= JOINED_BYTES:
            pieces = [b"".join(pieces)]
        for piece in pieces:
            if piece:
                self._tls.write(piece)
        self._send_encrypted()

    def close(self) -> None:
        """Send close_notify and the waiting bytes, then end the connection."""
        if not self.is_closing() and self._handshake_done:
            with suppress(ssl.SSLError):  # SSLWantReadError: the peer's is not waited for
                self._tls.unwrap()
            self._send_encrypted()
        super().close()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return `ssl_object` and `peercert`, too."""
        if name == "ssl_object":
            return self._tls
        if name == "peercert":
            return self._tls.getpeercert() if self._handshake_done else None
        return super().get_extra_info(name, default)

    def _begin(self) -> None:
        """Wait for the client's first bytes, for a limited time."""
        self._timer = self._sockets.loop.call_later(self._limit_s, self.abort)

    def _process(self, data: memoryview) -> int:
        if data:
            self._received.write(data)
            return self._read_tls()
        work_ns = self._protocol.receive(NOTHING)
        return work_ns if self._protocol.behind else work_ns + self._read_tls()

    def _read_tls(self) -> int:
        """Decrypt until the protocol is behind, or nothing is left. Return the work in nanoseconds."""
        work_ns = 0
        try:
            if not self._handshake_done:
                work_ns += HANDSHAKE_NS
                self._tls.do_handshake()
                self._timer.cancel()
                self._handshake_done = True
                self._send_encrypted()
                self._protocol.connection_made(self)
            tls, received, protocol = self._tls, self._received, self._protocol
            while (received.pending or tls.pending()) and not (protocol.behind or self.is_closing()):
                if not (size := self._decrypt()):
                    break
                work_ns += protocol.receive(self._buffer[:size]) + RECORD_NS * self._records
        except ssl.SSLWantReadError:
            self._send_encrypted()
        except ssl.SSLError as error:
            self._send_encrypted()  # the alert that states the reason to the peer
            self._end(error)
        return work_ns

    def _decrypt(self) -> int:
        """Fill the buffer with decrypted bytes, a record at a time; return 0 after the peer's close_notify."""
        filled, most, self._records = 0, len(self._buffer), 0
        try:
            while filled < most:
                size = cast("int", self._tls.read(most - filled, self._buffer[filled:] if filled else self._buffer))
                if not size:
                    self._end(None)
                    break
                filled += size
                self._records += 1
                if not (self._received.pending or self._tls.pending()):  # else an exception would tell
                    break
        except ssl.SSLWantReadError:
            pass
        return filled

    def _send_encrypted(self) -> None:
        if self._to_send.pending:
            super().write(self._to_send.read())

    def _lost(self, error: Exception | None) -> None:
        self._timer.cancel()
        if self._handshake_done:
            super()._lost(error)
