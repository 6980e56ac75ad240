"""MQTT client on the event loop: paho-mqtt with asyncio. Only this module, `client` and `paho_client` import paho.

paho does the handshake, packet ids, properties and the keepalive. This module puts the socket on the loop
(a thread only for the blocking connect and handshake), computes one timer for the keepalive, and controls whether the
socket is read. Everything but the body of `connect` runs on the loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gateway.frontends.mqtt.messages import Message, OutgoingPublish, Subscription
from gateway.frontends.mqtt.session import events
from gateway.frontends.mqtt.session.identity import MqttIdentity
from gateway.frontends.mqtt.session.listener import End, Listener, Welcome
from gateway.frontends.mqtt.session.packets import PacketTooLargeError
from gateway.frontends.mqtt.session.paho_client import Packed, new_client, pack, read_message, read_plain
from gateway.frontends.mqtt.settings import MqttSettings

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

_log = logging.getLogger(__name__)
UNSUPPORTED_PROTOCOL = 0x84
SESSION_TAKEN_OVER = 0x8E
READ_S = 0.002
"""Longest time for which messages are read in a row: their inferences run together, and other work waits."""
PACKET_OVERHEAD_BYTES = 512
"""Estimate, on the safe side, of the fixed header, packet id and properties."""


class MqttSession:
    """Client of one protocol version, for any number of connections, one at a time."""

    def __init__(self, settings: MqttSettings, identity: MqttIdentity, listener: Listener, *, version_5: bool) -> None:
        self.version_5 = version_5
        self.epoch = 0
        self._settings = settings
        self._listener = listener
        self._tls = identity.tls
        self._client_id = identity.client_id
        self._client = new_client(settings, identity, version_5=version_5)
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._welcome: Welcome | None = None
        self._refusal = ""
        self._end = End.SILENT
        self._reading = True
        self.reading_since_s = 0.0
        """Time since when the socket has been read."""
        self._writer = False
        self._last_in_s = self._last_out_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._packed: dict[tuple[str, int], Packed] = {}
        self._listen()

    @property
    def reading(self) -> bool:
        """Return True unless the socket is left unread."""
        return self._reading

    @property
    def congested(self) -> bool:
        """Return True while the kernel accepts no more bytes; `writable` is called at the end of that."""
        return self._writer

    async def connect(self, epoch: int) -> None:
        """Open the connection `epoch` and send CONNECT. Then `welcomed` or `lost` is called.

        Raises OSError or ValueError.

        paho blocks during name resolution, connect and handshake, so this call runs on a thread of the pool.
        """
        self._refusal, self._end, self._welcome = "", End.SILENT, None
        self._client.begin_connection()
        self.epoch = epoch
        attempt = self._loop.run_in_executor(None, self._client.reconnect)
        try:
            await asyncio.shield(attempt)
        except asyncio.CancelledError:
            attempt.add_done_callback(self._close_late)  # the thread cannot be interrupted
            raise
        except (OSError, ValueError):
            if self._tls is not None and self._tls.newest is not None:
                self._tls.newest.close()
            raise
        self._attach()

    def _close_late(self, attempt: asyncio.Future[Any]) -> None:
        """Close the socket of an attempt that nothing waits for any more."""
        found = None if attempt.cancelled() or attempt.exception() else self._client.socket()
        if found is not None:
            found.close()

    def publish(self, publication: OutgoingPublish) -> int:
        """Send a publication now. Return its packet id, with which `taken` is called at QoS 1.

        Return 0 if it exceeds the broker's largest packet, and -1 if paho has no free packet id.
        """
        from paho.mqtt.enums import MQTTErrorCode

        welcome = self._welcome or Welcome(resumed=False)
        size = len(publication.payload) + len(publication.topic) * 4 + PACKET_OVERHEAD_BYTES
        if size + len(publication.correlation or b"") > welcome.maximum_packet_bytes:
            return 0
        publication.qos = min(publication.qos, welcome.maximum_qos)
        information = self._client.publish(
            publication.topic,
            publication.payload,
            publication.qos,
            publication.retain and welcome.retain,
            self._properties(publication),
        )
        return -1 if information.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE else information.mid

    def forget_inflight(self) -> None:
        """Make paho forget the publications that it would send again on the next connection."""
        self._client.drop_out_messages()

    def acknowledge(self, message: Message) -> bool:
        """Send the PUBACK if the message came by this connection. Otherwise its id may mean another message now."""
        if message.epoch != self.epoch or self._welcome is None:
            return False
        self._client.ack(message.mid, message.qos)
        return True

    def subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Subscribe; `subscribed` is called with the broker's code for each.

        Retained messages are requested by few subscriptions, because they are old (MQTT 5). An older broker sends
        them all, and they are counted.
        """
        from paho.mqtt.subscribeoptions import SubscribeOptions

        if self.version_5:
            handling = (SubscribeOptions.RETAIN_DO_NOT_SEND, SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE)
            options = [(s.filter, SubscribeOptions(s.qos, retainHandling=handling[s.retained])) for s in subscriptions]
            self._client.subscribe(options)
        else:
            self._client.subscribe([(s.filter, s.qos) for s in subscriptions])

    def read(self, *, on: bool) -> None:
        """Start or stop reading the socket. Without reading, messages stay in the kernel and at the broker."""
        if on == self._reading:
            return
        self._reading = on
        if self._socket is not None and on:
            self.reading_since_s = self._loop.time()
            self._loop.add_reader(self._socket, self._readable)
            if self._has_unread():
                self._loop.call_soon(self._readable)
        elif self._socket is not None:
            self._loop.remove_reader(self._socket)

    def disconnect(self) -> None:
        """Send DISCONNECT, so that the broker does not publish the Will. `lost` follows when the socket is closed."""
        self._client.disconnect()

    def end(self, reason: str) -> None:
        """Close a connection that is of no use any more; the Will is published. `lost` is called with `reason`."""
        self.abandon()
        self._listener.lost(reason, End.GIVEN_UP if self._end is End.WELCOMED else self._end)

    def abandon(self) -> None:
        """Close the socket without a DISCONNECT."""
        if self._socket is not None:
            gone = self._socket
            self._detach()
            gone.close()
            self._client.begin_connection()

    def _listen(self) -> None:
        client = self._client
        client.on_connect = self._on_connect
        client.on_subscribe = lambda _c, _u, _mid, codes, _p: self._listener.subscribed([code.value for code in codes])
        client.on_puback = self._listener.taken
        client.on_plain_message = self._on_plain_message
        client.on_message = lambda _c, _u, message: self._on_message(message)
        client.on_disconnect = self._on_disconnect
        client.on_socket_close = lambda _c, _u, _s: self._detach()
        client.on_socket_register_write = lambda _c, _u, _s: self._want_write()

    def _attach(self) -> None:
        connection: Any = self._client.socket()
        self._socket = connection
        self._last_in_s = self._last_out_s = self.reading_since_s = self._loop.time()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._reading:
            self._loop.add_reader(connection, self._readable)
        self._arm()
        self._writable()

    def _detach(self) -> None:
        if self._socket is None:
            return
        self._loop.remove_reader(self._socket)
        if self._writer:
            self._loop.remove_writer(self._socket)
        if self._timer is not None:
            self._timer.cancel()
        self._socket, self._writer, self._welcome = None, False, None

    def _readable(self) -> None:
        """Read once from the socket, and handle what has arrived, or for READ_S."""
        self._last_in_s = self._loop.time()
        ends_s, first = self._last_in_s + READ_S, True
        while self._may_read() and (first or self._client.has_unread):
            first = False
            self._guard(self._client.loop_read)
            if self._loop.time() >= ends_s:
                break
        if self._may_read() and self._has_unread():
            self._loop.call_soon(self._readable)

    def _may_read(self) -> bool:
        return self._reading and self._socket is not None

    def _has_unread(self) -> bool:
        """Return True if bytes wait in this process: they do not make the socket readable again."""
        return self._client.has_unread or bool(_decrypted(self._socket))

    def _guard(self, step: Callable[[], object]) -> None:
        """Run one step of paho. After an exception only a new connection helps: half a packet may remain."""
        try:
            step()
        except PacketTooLargeError as error:
            self.end(str(error))
        except Exception as error:  # noqa: BLE001  a callback of the loop: without this the connection would never end
            _log.exception(events.BROKER_CONNECTION_FAILED)
            self.end(f"{type(error).__name__}: {error}")

    def _want_write(self) -> None:
        """Schedule a flush: one per iteration of the loop sends all that was queued in it.

        A writer is registered only if the kernel's buffer is full. `connect` also calls this on its thread, before this
        session has a socket; `_attach` flushes then.
        """
        if self._socket is not None:
            self._loop.call_soon(self._writable)

    def _writable(self) -> None:
        if self._socket is None:
            return
        self._guard(self._client.loop_write)
        self._guard(self._client.flush)
        self._last_out_s = self._loop.time()
        if self._socket is not None:
            self._watch_writable(self._socket, on=self._client.has_unsent)

    def _watch_writable(self, connection: socket.socket, *, on: bool) -> None:
        if on and not self._writer:
            self._loop.add_writer(connection, self._writable)
        elif self._writer and not on:
            self._loop.remove_writer(connection)
            self._loop.call_soon(self._listener.writable)
        self._writer = on

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._client.keepalive:  # the broker's CONNACK may turn it off with 0
            due_s = min(self._last_in_s, self._last_out_s) + self._client.keepalive
            self._timer = self._loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        """Let paho send a PING after a keepalive without packets, or end a connection whose last PING has no answer."""
        now_s = self._loop.time()
        if now_s >= min(self._last_in_s, self._last_out_s) + self._client.keepalive:
            if not self._reading:
                self._client.expect_no_answer()
            self._guard(self._client.loop_misc)
            self._last_in_s = self._last_out_s = self._loop.time()
        if self._socket is not None:
            self._arm()

    def _on_connect(self, _client: Client, _userdata: Any, flags: Any, reason: Any, properties: Any) -> None:
        if reason.is_failure:
            self._refusal = str(reason)
            self._end = End.OLD_PROTOCOL if reason.value == UNSUPPORTED_PROTOCOL else End.REFUSED
            return
        self._end = End.WELCOMED
        self._welcome = Welcome(
            resumed=flags.session_present,
            receive_maximum=getattr(properties, "ReceiveMaximum", 65_535),
            maximum_packet_bytes=getattr(properties, "MaximumPacketSize", 268_435_455),
            maximum_qos=min(1, getattr(properties, "MaximumQoS", 1)),
            retain=bool(getattr(properties, "RetainAvailable", 1)),
            keepalive_s=self._client.keepalive,
            client_id=getattr(properties, "AssignedClientIdentifier", self._client_id),
            version_5=self.version_5,
        )
        self._arm()  # the CONNACK may shorten the keepalive
        self._listener.welcomed(self._welcome)

    def _on_disconnect(self, _client: Client, _userdata: Any, _flags: Any, reason: Any, _properties: Any) -> None:
        self._detach()
        if reason.value == SESSION_TAKEN_OVER:
            self._end = End.TAKEN_OVER
        self._listener.lost(self._refusal or str(reason), self._end)

    def _on_message(self, received: Any) -> None:
        self._listener.received(read_message(received, self.epoch))

    def _on_plain_message(self, topic: bytes, payload: bytes, first: int, mid: int) -> None:
        self._listener.received(read_plain(topic, payload, first, mid, self.epoch))

    def _properties(self, publication: OutgoingPublish) -> Properties | None:
        own = publication.correlation is not None or bool(publication.user)
        common = (publication.content_type, publication.expiry_s)
        if not self.version_5 or not (own or any(common)):
            return None
        packed: Any = None if own else self._packed.get(common)
        if packed is None:
            packed = pack(publication)
            if not own:
                self._packed[common] = packed
        properties: Properties = packed
        return properties


def _decrypted(connection: Any) -> int:
    """Return the number of bytes that OpenSSL has decrypted and that were not read yet; 0 on a plain socket."""
    pending = getattr(connection, "pending", None)
    return pending() if pending is not None else 0
