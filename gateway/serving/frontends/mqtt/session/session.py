"""One connection to a broker: an asyncio protocol that speaks MQTT 5 or 3.1.1 (decision 0051).

It does the handshake, the keepalive and the framing, reads no more than its owner can process, and writes once in each
pass of the event loop. Packet ids and what is sent again belong to its owner.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import cast

from gateway.common.timeouts import timeout
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish, Subscription
from gateway.serving.frontends.mqtt.session import control, events
from gateway.serving.frontends.mqtt.session.identity import MqttIdentity, connect_options, tls_context
from gateway.serving.frontends.mqtt.session.keepalive import Keepalive
from gateway.serving.frontends.mqtt.session.listener import End, Listener, Welcome, read_welcome
from gateway.serving.frontends.mqtt.session.outbox import ID_LIMIT
from gateway.serving.frontends.mqtt.session.packets import MalformedPacketError, PacketReader
from gateway.serving.frontends.mqtt.session.properties import Property
from gateway.serving.frontends.mqtt.session.publications import PublicationWriter, read_publish
from gateway.serving.frontends.mqtt.settings.broker import Broker, MqttSettings, broker_of

_log = logging.getLogger(__name__)
READ_BYTES = 64 * 1024
"""Bytes that are read from the socket at a time."""
READ_S = 0.002
"""Longest time for which messages are read in a row: their inferences run together, and other work waits."""
WRITE_BYTES = 64 * 1024
"""Bytes that are sent at once, and beyond which no more are accepted until the kernel has taken them."""
_SUBSCRIBE_ID, _UNSUBSCRIBE_ID = ID_LIMIT + 1, ID_LIMIT + 2
"""Packet ids of these two: the next one follows the answer, and publications have others (MQTT 5, 2.2.1)."""


class MqttSession(asyncio.BufferedProtocol):
    """Connection `epoch` of one client; `connect` opens it, and it is not used again after its end."""

    def __init__(
        self,
        settings: MqttSettings,
        identity: MqttIdentity,
        listener: Listener,
        *,
        version_5: bool,
        epoch: int,
        patience: int = 1,
    ) -> None:
        """Set up the session. `patience`: times `connect_timeout_s` that the broker has to answer CONNECT."""
        self.version_5, self.epoch = version_5, epoch
        self._settings, self._identity, self._listener = settings, identity, listener
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._connect = b""
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._packets = PacketReader(settings.max_packet_bytes)
        self._writer = PublicationWriter(version_5=version_5)
        self._welcome: Welcome | None = None
        answer_s = min(settings.keepalive_s, settings.connect_timeout_s * patience)
        self._keepalive = Keepalive(answer_s, self.ping, self.end)
        self._reason, self._end = "the broker closed the connection", End.SILENT
        self._reading = self._takes_bytes = True
        """Wish of the owner; state of the socket."""
        self._handles = False
        """True while packets are handled, or will be in the next pass of the event loop: then `_pace` follows."""
        self.reading_since_s = 0.0
        """Time since when the socket has been read."""
        self.congested = False
        """True while the kernel accepts no more bytes; `writable` is called at the end of that."""
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0

    @property
    def reading(self) -> bool:
        """Return True unless the socket is left unread."""
        return self._reading

    async def connect(self) -> None:
        """Open the connection and send CONNECT. Then `welcomed` or `lost` is called.

        Password and certificates are read from their files each time: they may have been renewed. The addresses of the
        broker's name are tried one after the other. Raises ConfigurationError for files that cannot be used, OSError,
        or ValueError for a host that is no name or a password that does not fit into a CONNECT.
        """
        options = await asyncio.to_thread(connect_options, self._settings, self._identity)
        tls = await asyncio.to_thread(tls_context, self._settings)
        self._connect = control.write_connect(options, version_5=self.version_5)
        broker, problem = broker_of(self._settings.url), OSError("the broker's name has no address")
        found = await self._loop.getaddrinfo(broker.host, broker.port, type=socket.SOCK_STREAM)
        for *_, address in found:
            try:
                await self._open(str(address[0]), broker, tls)
            except OSError as error:
                problem = error
            else:
                return
        raise problem

    async def _open(self, address: str, broker: Broker, tls: ssl.SSLContext | None) -> None:
        """Connect to one address. Raises OSError."""
        limit_s = self._settings.connect_timeout_s
        name = None if tls is None else broker.host
        try:
            async with timeout(limit_s):
                await self._loop.create_connection(lambda: self, address, broker.port, ssl=tls, server_hostname=name)
        except TimeoutError:
            problem = f"no connection to {address}, port {broker.port}, within {limit_s:g} s (mqtt.connect_timeout_s)"
            raise ConnectionError(problem) from None

    def publish(self, publication: OutgoingPublish, mid: int) -> bool:
        """Send a publication, with the packet id `mid` at QoS 1: `taken` is called with it.

        Return False if it exceeds the broker's largest packet, or what MQTT can carry.
        """
        welcome = self._welcome or Welcome(resumed=False)
        try:
            packet = self._writer.write(publication, mid, retain=publication.retain and welcome.retain)
        except ValueError:
            return False
        if len(packet) > welcome.maximum_packet_bytes:
            return False
        self._send(packet)
        return True

    def acknowledge(self, message: Message) -> bool:
        """Send the PUBACK if the message came by this connection. Otherwise its id may mean another message now."""
        if message.epoch != self.epoch or self._welcome is None:
            return False
        self._send(control.write_puback(message.mid))
        return True

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Subscribe; `subscribed` is called with the broker's code for each.

        Retained messages are requested by few subscriptions, because they are old (MQTT 5). An older broker sends
        them all, and they are counted.
        """
        self._send(control.write_subscribe(_SUBSCRIBE_ID, subscriptions, version_5=self.version_5))

    def unsubscribe(self, filters: Sequence[str]) -> None:
        """End subscriptions; `unsubscribed` is called with the broker's code for each, which MQTT 3.1.1 lacks."""
        self._send(control.write_unsubscribe(_UNSUBSCRIBE_ID, filters, version_5=self.version_5))

    def read(self, *, on: bool) -> None:
        """Start or stop reading the socket. Without reading, messages stay in the kernel and at the broker."""
        if on and not self._reading:
            self.reading_since_s = self._loop.time()
        self._reading = on
        self._pace()

    def disconnect(self) -> None:
        """Send DISCONNECT, so that the broker does not publish the Will. `lost` follows when the socket is closed."""
        if self._transport is not None:
            self._send(control.GOODBYE)
            self.flush()
            self._transport.close()

    def end(self, reason: str) -> None:
        """Close a connection that is of no use any more; the Will is published. `lost` is called with `reason`."""
        self.abandon()
        self._listener.lost(reason, _GIVEN_UP.get(self._end, self._end))

    def abandon(self) -> None:
        """Close the socket without a DISCONNECT."""
        transport = self._transport
        self._detach()
        if transport is not None:
            transport.abort()

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Implement Protocol.connection_made: send CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=WRITE_BYTES)
        self._socket = transport.get_extra_info("socket")
        self.reading_since_s = self._loop.time()
        self._send(self._connect)
        self._keepalive.begin()
        self._pace()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Implement BufferedProtocol.get_buffer."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Implement BufferedProtocol.buffer_updated: handle what has arrived, and acknowledge it to TCP at once.

        mosquitto's sockets use Nagle's algorithm by default. At QoS 0 nothing is written here, and it would send no
        more until the kernel's delayed acknowledgement, after 40 ms.
        """
        self._keepalive.received()
        self._packets.feed(bytes(self._buffer[:nbytes]))
        self._handle_packets()
        if self._socket is not None:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def pause_writing(self) -> None:
        """Implement Protocol.pause_writing."""
        self.congested = True

    def resume_writing(self) -> None:
        """Implement Protocol.resume_writing."""
        self.congested = False
        self._loop.call_soon(self._listener.writable)

    def connection_lost(self, exc: Exception | None) -> None:
        """Implement Protocol.connection_lost. Nothing follows after `abandon`."""
        if self._transport is not None:
            self._detach()
            self._listener.lost(str(exc) if exc is not None else self._reason, self._end)

    # ---- reading ---------------------------------------------------------------------------------------------------
    def _handle_packets(self) -> None:
        """Handle what has arrived, or for READ_S; the rest follows in the next pass of the event loop."""
        ends_s, packets, listener = monotonic() + READ_S, self._packets, self._listener
        self._handles = True
        listener.batch_began()
        try:
            while self._reading and self._transport is not None and (packet := packets.take()) is not None:
                first, body = packet
                if first & control.KIND == control.PUBLISH:
                    listener.received(read_publish(first, body, self.epoch, version_5=self.version_5))
                else:
                    self._handle(first, body)
                if not packets.may_have_packet or monotonic() >= ends_s:
                    break
        except MalformedPacketError as error:
            self.end(str(error))
        except Exception as error:  # noqa: BLE001  a callback of the loop: without this the connection would never end
            _log.exception(events.BROKER_CONNECTION_FAILED)
            self.end(f"{type(error).__name__}: {error}")
        finally:
            self._handles = False
            self._listener.batch_ended()
        self._pace()

    def _pace(self) -> None:
        """Read the socket while its owner wants messages and none waits here; continue with those that wait."""
        if self._transport is None or self._handles:
            return
        waits = self._packets.may_have_packet
        if (takes := self._reading and not waits) != self._takes_bytes:
            self._takes_bytes = takes
            self._transport.resume_reading() if takes else self._transport.pause_reading()
        if self._reading and waits:
            self._handles = True
            self._loop.call_soon(self._handle_packets)

    def _handle(self, first: int, body: bytes) -> None:
        """Handle one packet, but no PUBLISH. Raises MalformedPacketError."""
        kind = first & control.KIND
        if kind == control.PUBACK:
            self._listener.taken(*control.read_puback(body, version_5=self.version_5))
        elif (handle := _HANDLERS.get(kind)) is not None:
            handle(self, body)
        else:
            raise MalformedPacketError(f"the broker sent a packet of kind {kind >> 4}, which is not for clients")

    def _on_connack(self, body: bytes) -> None:
        if self._welcome is not None:
            raise MalformedPacketError("the broker sent a second CONNACK")
        answer = control.read_connack(body, version_5=self.version_5)
        if answer.code:
            is_old = answer.code in {control.UNSUPPORTED_PROTOCOL, control.UNSUPPORTED_PROTOCOL_3_1_1}
            text = answer.properties.get(Property.REASON_STRING, "")
            self._end = End.OLD_PROTOCOL if is_old else End.REFUSED
            self.end(control.reason_name(answer.code, version_5=self.version_5 and answer.code >= 0x80, text=text))
            return
        welcome = read_welcome(answer, self._settings.keepalive_s, self._identity.client_id, version_5=self.version_5)
        self._keepalive.welcomed(welcome.keepalive_s)
        self._end, self._welcome = End.WELCOMED, welcome
        self._listener.welcomed(welcome)

    def _on_suback(self, body: bytes) -> None:
        _, codes = control.read_suback(body, version_5=self.version_5)
        self._listener.subscribed(codes)

    def _on_unsuback(self, body: bytes) -> None:
        self._listener.unsubscribed(control.read_unsuback(body, version_5=self.version_5))

    def _on_disconnect(self, body: bytes) -> None:
        code, text = control.read_disconnect(body)
        if code == control.SESSION_TAKEN_OVER:
            self._end = End.TAKEN_OVER
        self.abandon()
        self._listener.lost(control.reason_name(code, version_5=True, text=text), self._end)

    # ---- writing ---------------------------------------------------------------------------------------------------
    def _send(self, packet: bytes) -> None:
        """Send a packet with all others of this pass of the event loop."""
        if not (self._unsent or self._listener.in_batch):
            self._loop.call_soon(self.flush)
        self._unsent.append(packet)
        self._unsent_bytes += len(packet)
        if self._unsent_bytes >= WRITE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was sent in this pass of the event loop now; otherwise it is written at the end of the pass."""
        if not self._unsent:
            return
        if self._transport is not None:
            self._transport.write(self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent))
            self._keepalive.sent()
        self._unsent.clear()
        self._unsent_bytes = 0

    def ping(self) -> bool:
        """Send a PING; `answered` follows. Return True if its answer can be read: else it stays in the socket."""
        self._send(control.PING)
        return self._reading

    def _detach(self) -> None:
        self._transport, self._welcome, self._socket = None, None, None
        self._unsent.clear()
        self._unsent_bytes = 0
        self._keepalive.close()


_GIVEN_UP = {End.WELCOMED: End.GIVEN_UP, End.SILENT: End.UNANSWERED}
"""End of a connection that we close, by what it would be if the broker had closed it."""
_HANDLERS: Mapping[int, Callable[[MqttSession, bytes], None]] = {
    control.CONNACK: MqttSession._on_connack,
    control.SUBACK: MqttSession._on_suback,
    control.UNSUBACK: MqttSession._on_unsuback,
    control.PINGRESP: lambda session, _: session._listener.answered(),
    control.DISCONNECT: MqttSession._on_disconnect,
}
"""Handlers of packets that are rare, by the first byte without flags."""
