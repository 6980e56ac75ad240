"""Permanent connection to the broker, with MQTT 5 or 3.1.1: one session at a time, reconnects, and the outbox.

A broker that is unavailable, at start or later, is no error. Publications wait in the bounded outbox, and the broker
keeps the messages for us.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from gateway.domain.retry import draw_chance, pause_s
from gateway.frontends.mqtt.messages import REFUSED, Message, OutgoingPublish, Subscription
from gateway.frontends.mqtt.session.identity import MqttIdentity
from gateway.frontends.mqtt.session.outbox import Outbox
from gateway.frontends.mqtt.session.session import PACKET_TOO_LARGE, End, MqttSession, Welcome
from gateway.frontends.mqtt.settings import MqttSettings

_LOG = logging.getLogger(__name__)
EARLY_LOSSES = 2
"""Connections closed before a CONNACK after which the other protocol version is tried.

Some brokers close the connection instead of refusing the version.
"""


class Link:
    """Connection of the gateway to its broker.

    `receive` is called with every message, `changed` with every (connected, reason).
    """

    def __init__(
        self,
        settings: MqttSettings,
        identity: MqttIdentity,
        subscriptions: Sequence[Subscription],
        *,
        receive: Callable[[Message], None],
        changed: Callable[[bool, str], None],
        counters: Counter[str],
    ) -> None:
        self._settings, self._identity, self._subscriptions = settings, identity, subscriptions
        self._receive, self._changed, self._counters = receive, changed, counters
        self._outbox = Outbox(settings.max_outbox, settings.max_outbox_bytes, settings.max_inflight)
        self._session: MqttSession | None = None
        self._version_5 = True
        self._ready = False
        self._paused = self._pumping = False
        self._early = 0
        self._guessed = False
        self._owing = False
        self._ended = asyncio.Event()
        self._stop = asyncio.Event()
        self._reason = ""
        self._drained: asyncio.Event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def connected(self) -> bool:
        """Return True if the broker has accepted the connection and the subscriptions."""
        return self._ready

    @property
    def waiting(self) -> int:
        """Return the number of publications that the broker has not accepted yet."""
        return len(self._outbox)

    def start(self) -> None:
        """Begin to connect, and return at once."""
        self._task = asyncio.get_running_loop().create_task(self._stay_connected(), name="mqtt-link")

    def publish(self, publication: OutgoingPublish, *, urgent: bool = False) -> bool:
        """Send a publication as soon as the broker can accept it.

        Return False, counted, if it is dropped: QoS 0 without a connection, or beyond the outbox's limits and not
        urgent.
        """
        if not publication.qos and not self._ready:
            self._counters["dropped_broker_away"] += 1
            return False
        if not self._outbox.put(publication, urgent=urgent):
            self._counters["dropped_outbox_full"] += 1
            self._owing = self._owing or publication.taken is not None
            return False
        self._pump()
        return True

    def acknowledge(self, message: Message) -> None:
        """Send a QoS 1 message's PUBACK. If its connection has ended, the broker sends the message again."""
        if message.qos and self._session is not None:
            sent = self._session.acknowledge(message)
            self._counters["acknowledged" if sent else "acknowledgements_stale"] += 1

    def pause(self, *, on: bool) -> None:
        """Stop or resume reading the socket."""
        self._paused = on
        if self._session is not None:
            self._session.read(on=not on)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the broker has accepted the whole outbox. Return False if it has not within `timeout_s`."""
        self._drained.clear()
        if not len(self._outbox):
            return True
        if not self._ready:
            return False
        try:
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        except TimeoutError:
            return False
        return not len(self._outbox)

    async def stop(self, timeout_s: float) -> None:
        """Disconnect cleanly, or close the connection after `timeout_s`."""
        self._stop.set()
        if self._task is None:
            return
        if self._session is not None and self._ready:
            self._session.disconnect()
        else:
            self._ended.set()
        await asyncio.wait({self._task}, timeout=timeout_s)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._session is not None:
            self._session.abandon()

    async def _stay_connected(self) -> None:
        failures = 0
        while not self._stop.is_set():
            began = time.monotonic()
            reason = await self._one_connection()
            if self._stop.is_set():
                return
            held_s = time.monotonic() - began
            failures = 0 if held_s > self._settings.reconnect_max_s else failures
            failures += 1
            wait_s = pause_s(failures, self._settings.reconnect_min_s, self._settings.reconnect_max_s, draw_chance())
            _LOG.warning("no MQTT broker at %s (%s); next try in %.1f s", self._settings.url, reason, wait_s)
            await _wait(self._stop, wait_s)

    async def _one_connection(self) -> str:
        """Connect, and wait until the connection ends. Return the reason of its end."""
        session = self._current_session()
        self._ended.clear()
        try:
            await session.connect()
        except Exception as error:  # noqa: BLE001  the task's boundary: the link tries again
            self._counters["connect_failures"] += 1
            return str(error) or type(error).__name__
        if self._stop.is_set():
            session.abandon()
            return "stopping"
        await self._ended.wait()
        return self._reason

    def _current_session(self) -> MqttSession:
        """Return the session of the protocol version to try. A new one starts without the old one's packet ids."""
        if self._session is None or self._session.version_5 != self._version_5:
            self._outbox.rewind()
            self._session = MqttSession(self._settings, self._identity, self, version_5=self._version_5)
            self._session.read(on=not self._paused)
        return self._session

    def welcomed(self, welcome: Welcome) -> None:
        """Handle CONNACK: subscribe, then send what waited, after paho has sent again what was in flight."""
        if self._session is None:
            return
        self._early = 0
        if not self._outbox.reconnected(welcome.receive_maximum, resumed=welcome.resumed):
            self._session.forget_inflight()
        self._session.subscribe(self._subscriptions)
        self._counters["connections"] += 1

    def subscribed(self, codes: Sequence[int]) -> None:
        """Handle SUBACK: messages may arrive now."""
        for subscription, code in zip(self._subscriptions, codes, strict=False):
            if code >= REFUSED:
                self._counters["subscriptions_refused"] += 1
                _LOG.error(
                    "the MQTT broker refuses %s (reason code 0x%02x); correct its ACL", subscription.filter, code
                )
        self._ready = True
        self._changed(True, "")
        asyncio.get_running_loop().call_soon(self._pump)

    def received(self, message: Message) -> None:
        """Handle PUBLISH."""
        self._receive(message)

    def taken(self, mid: int, code: int) -> None:
        """Handle PUBACK."""
        publication = self._outbox.taken(mid)
        if publication is None:
            return
        self._settle(publication, code)
        self._pump()

    def lost(self, reason: str, end: End) -> None:
        """Handle the end of a connection, or of an attempt to connect."""
        was_ready, self._ready = self._ready, False
        self._reason = reason
        self._choose_version(end)
        if was_ready:
            self._changed(False, reason)
        else:
            self._counters["connect_failures"] += 1
        self._drained.set()
        self._ended.set()

    def _choose_version(self, end: End) -> None:
        """Choose the protocol version of the next connection.

        If the broker refused the version, the other one is used from then on. After two connections that the broker
        only closed, the other version is tried for one connection.
        """
        if end is End.OLD_PROTOCOL:
            self._version_5 = not self._version_5
        elif end is End.SILENT:
            self._early += 1
            if self._early >= EARLY_LOSSES:
                self._early, self._version_5, self._guessed = 0, not self._version_5, self._version_5
        elif self._guessed:
            self._version_5, self._guessed = True, False

    def _pump(self) -> None:
        if self._pumping:  # the loop below also sends what follows from a settled publication, without recursion
            return
        self._pumping = True
        try:
            while self._ready and (publication := self._outbox.first()) and self._sent(publication):
                pass
        finally:
            self._pumping = False
        if not len(self._outbox):
            self._drained.set()
            self._fetch_again()

    def _sent(self, publication: OutgoingPublish) -> bool:
        """Send the first publication of the outbox. Return False if the session cannot accept it now."""
        mid = -1 if self._session is None else self._session.publish(publication)
        if mid == 0:
            self._settle(self._outbox.drop_first(), PACKET_TOO_LARGE)
        elif mid > 0 and not self._outbox.sent(mid).qos:
            self._settle(publication, 0)
        return mid >= 0

    def _fetch_again(self) -> None:
        """Reconnect, because the outbox has room: a broker repeats unacknowledged messages only on a new connection."""
        if self._owing and self._ready and self._session is not None:
            self._owing = False
            self._counters["reconnects_owing"] += 1
            self._session.disconnect()

    def _settle(self, publication: OutgoingPublish, code: int) -> None:
        self._counters["published" if code < REFUSED else "publications_refused"] += 1
        if publication.taken is not None:
            publication.taken(code)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
