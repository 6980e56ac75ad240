"""paho's client with framing and buffers of our own: it reads and writes many packets per system call.

paho calls the kernel three times for each packet that it reads, once for each that it writes, and it reads packets of
any size. It also builds properties and reason codes for each PUBACK and PUBLISH that has none: a third of their cost.
"""

from __future__ import annotations

import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from paho.mqtt.client import Client, MQTTv5
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.exception import MalformedPacket

from gateway.frontends.mqtt.session.packets import FramedPacket, PacketReader

READ_BYTES = 64 * 1024
"""Bytes that are read from the socket at a time."""
PUBACK, PUBLISH, KIND = 0x40, 0x30, 0xF0
QOS, QOS_1 = 0x06, 0x02
"""Quality of service in the first byte of a PUBLISH (MQTT 5, 3.3.1)."""


class GuardedClient(Client):
    """Client of one connection at a time; `begin_connection` comes before each."""

    on_puback: Callable[[int, int], None]
    """Called with packet id and reason code of each PUBACK."""
    on_plain_message: Callable[[bytes, bytes, int, int], None]
    """Called with topic, payload, first byte and packet id of each PUBLISH without properties, of QoS 0 or 1."""

    def __init__(self, *arguments: Any, max_packet_bytes: int, **named: Any) -> None:
        self._max_packet_bytes = max_packet_bytes
        self.begin_connection()
        super().__init__(*arguments, **named)

    def begin_connection(self) -> None:
        """Forget the bytes of the last connection."""
        self._unsent = bytearray()
        self._packets = PacketReader(self._max_packet_bytes)

    @property
    def has_unread(self) -> bool:
        """Return True if `loop_read` may find a packet although the socket has no bytes."""
        return self._packets.may_have_packet

    @property
    def has_unsent(self) -> bool:
        """Return True if the kernel has not accepted all that was written."""
        return bool(self._unsent)

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Handle one packet. Raises PacketTooLargeError before a packet beyond the limit is read."""
        code, packet = MQTTErrorCode.MQTT_ERR_SUCCESS, self._packets.take()
        if packet is None:
            code = self._receive()
            packet = self._packets.take()
        if packet is not None and not code:
            code = self._handle(packet)
        return self._loop_rc_handle(code) if code else code

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

    def _receive(self) -> MQTTErrorCode:
        try:
            content = self._sock_recv(READ_BYTES)
        except BlockingIOError:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        except OSError:
            content = b""
        if not content:
            return MQTTErrorCode.MQTT_ERR_CONN_LOST
        self._last_bytes_received = time.monotonic()
        self._packets.feed(content)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handle(self, packet: FramedPacket) -> MQTTErrorCode:
        kind = packet.first & KIND
        if kind == PUBACK:
            return self._handle_puback(packet.body)
        if kind == PUBLISH and self._handled_plain(packet):
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        if kind == PUBLISH and packet.first & QOS > QOS_1:  # never subscribed: paho would keep it
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        self._in_packet |= {
            "command": packet.first,
            "remaining_length": len(packet.body),
            "packet": bytearray(packet.body),
            "pos": 0,
        }
        try:
            return self._packet_handle()
        except MalformedPacket:
            return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _handle_puback(self, body: bytes) -> MQTTErrorCode:
        """Handle PUBACK (MQTT 5, 3.4): packet id, then a reason code unless it is 0."""
        if len(body) < 2 or (len(body) > 2 and self._protocol != MQTTv5):
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        mid = int.from_bytes(body[:2], "big")
        if self._out_messages.pop(mid, None) is not None:
            self._inflight_messages -= 1
            self.on_puback(mid, body[2] if len(body) > 2 else 0)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _handled_plain(self, packet: FramedPacket) -> bool:
        """Handle a PUBLISH (MQTT 5, 3.3) without properties. Return False if it is another one, or malformed."""
        first, body = packet
        version_5, qos = self._protocol == MQTTv5, first & QOS
        if len(body) < 2 or qos > QOS_1:
            return False
        topic_end = 2 + int.from_bytes(body[:2], "big")
        start = topic_end + qos  # two bytes of packet id at QoS 1
        if topic_end == 2 or start + version_5 > len(body) or (version_5 and body[start]):
            return False
        mid = struct.unpack_from("!H", body, topic_end)[0] if qos else 0
        self.on_plain_message(body[2:topic_end], body[start + version_5 :], first, mid)
        return True

    def _sock_send(self, buf: bytes | bytearray) -> int:
        self._unsent += buf
        return len(buf)

    def _sock_close(self) -> None:
        if self._sock is not None and self._unsent:  # the DISCONNECT, which paho believes to be sent
            with suppress(OSError):
                self._sock.send(self._unsent)
            self._unsent.clear()
        super()._sock_close()
