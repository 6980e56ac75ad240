"""paho's client with a guard of packet sizes and with buffers: it reads and writes many packets per system call.

paho calls the kernel three times for each packet that it reads, and once for each that it writes.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode

from gateway.frontends.mqtt.session.packet_guard import PacketGuard

READ_BYTES = 64 * 1024
"""Bytes that are read from the socket at a time."""


class GuardedClient(Client):
    """Client of one connection at a time; `begin_connection` comes before each."""

    def __init__(self, *arguments: Any, max_packet_bytes: int, **named: Any) -> None:
        self._max_packet_bytes = max_packet_bytes
        self.begin_connection()
        super().__init__(*arguments, **named)

    def begin_connection(self) -> None:
        """Forget the bytes of the last connection."""
        self._arrived, self._at = b"", 0
        self._unsent = bytearray()
        self._packet_guard = PacketGuard(self._max_packet_bytes)

    @property
    def has_unread(self) -> bool:
        """Return True if bytes were read from the socket that paho has not taken yet."""
        return self._at < len(self._arrived)

    @property
    def has_unsent(self) -> bool:
        """Return True if the kernel has not accepted all that was written."""
        return bool(self._unsent)

    def flush(self) -> None:
        """Send what was written, as far as the kernel accepts it. An error ends the connection, as in paho."""
        try:
            while self._unsent and self._sock is not None:
                del self._unsent[: self._sock.send(self._unsent)]
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError:
            self._unsent.clear()
            self._loop_rc_handle(MQTTErrorCode.MQTT_ERR_CONN_LOST)

    def expect_no_answer(self) -> None:
        """Send the next PING although the last one has no answer: the socket is not read."""
        self._ping_t = 0.0

    def _sock_recv(self, bufsize: int) -> bytes:
        if self._at >= len(self._arrived):
            self._arrived, self._at = super()._sock_recv(READ_BYTES), 0
        taken = self._arrived[self._at : self._at + bufsize]
        self._packet_guard.read(taken)
        self._at += len(taken)
        return taken

    def _sock_send(self, buf: bytes | bytearray) -> int:
        self._unsent += buf
        return len(buf)

    def _sock_close(self) -> None:
        if self._sock is not None and self._unsent:  # the DISCONNECT, which paho believes to be sent
            with suppress(OSError):
                self._sock.send(self._unsent)
            self._unsent.clear()
        super()._sock_close()
