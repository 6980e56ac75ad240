"""Staying connected: one session at a time, reconnects with full jitter, MQTT 5 or 3.1.1, and the outbox.

A broker that is away, at start or later, is no error: what is to be published waits in its bound, and the broker
keeps what is for us.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from gateway.domain.retry import draw_chance, pause_s
from gateway.frontends.mqtt.identity import Identity
from gateway.frontends.mqtt.messages import REFUSED, Message, Publication, Subscription
from gateway.frontends.mqtt.outbox import Outbox
from gateway.frontends.mqtt.session import PACKET_TOO_LARGE, End, Session, Welcome
from gateway.frontends.mqtt.settings import MqttSettings

_LOG = logging.getLogger(__name__)
EARLY_LOSSES = 2
"""Connections closed before a CONNACK after which the other protocol version is tried: some brokers just hang up."""


class Link:
    """The gateway's standing with its broker. `receive` gets every message, `changed` every (connected, reason)."""

    def __init__(
        self,
        settings: MqttSettings,
        identity: Identity,
        subscriptions: Sequence[Subscription],
        *,
        receive: Callable[[Message], None],
        changed: Callable[[bool, str], None],
        counters: Counter[str],
    ) -> None:
        self._settings, self._identity, self._subscriptions = settings, identity, subscriptions
        self._receive, self._changed, self._counters = receive, changed, counters
        self._outbox = Outbox(settings.max_outbox, settings.max_outbox_bytes, settings.max_inflight)
        self._session: Session | None = None
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
        """Whether the broker has welcomed us."""
        return self._ready

    @property
    def waiting(self) -> int:
        """Publications that the broker has not taken yet."""
        return len(self._outbox)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._task = asyncio.get_running_loop().create_task(self._stay_connected(), name="mqtt-link")

    def publish(self, publication: Publication, *, urgent: bool = False) -> bool:
        """Send as soon as the broker can take it. False, and counted, where it is dropped: QoS 0 while the broker is
        away, anything beyond the outbox's bound that is not urgent."""
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
        """Send a QoS 1 message's PUBACK, unless its connection is gone: then the broker sends it again."""
        if message.qos and self._session is not None:
            sent = self._session.acknowledge(message)
            self._counters["acknowledged" if sent else "acknowledgements_stale"] += 1

    def pause(self, *, on: bool) -> None:
        """Stop or resume reading the socket."""
        self._paused = on
        if self._session is not None:
            self._session.read(on=not on)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the broker has taken all of the outbox; False where it has not in `timeout_s`."""
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
        """Disconnect cleanly, or in `timeout_s` without a word."""
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
        """Connect and stay until the connection ends; why it did."""
        session = self._current_session()
        self._ended.clear()
        try:
            await session.connect()
        except Exception as error:  # noqa: BLE001 - the task's boundary: whatever paho raises, the link tries again
            self._counters["connect_failures"] += 1
            return str(error) or type(error).__name__
        if self._stop.is_set():
            session.abandon()
            return "stopping"
        await self._ended.wait()
        return self._reason

    def _current_session(self) -> Session:
        """The session of the protocol version to try; another version starts without the old one's packet ids."""
        if self._session is None or self._session.version_5 != self._version_5:
            self._outbox.rewind()
            self._session = Session(self._settings, self._identity, self, version_5=self._version_5)
            self._session.read(on=not self._paused)
        return self._session

    def welcomed(self, welcome: Welcome) -> None:
        """CONNACK: subscribe, then send what waited (after paho has sent again what was in flight)."""
        if self._session is None:
            return
        self._early = 0
        if not self._outbox.reconnected(welcome.receive_maximum, resumed=welcome.resumed):
            self._session.forget_inflight()
        self._session.subscribe(self._subscriptions)
        self._counters["connections"] += 1

    def subscribed(self, codes: Sequence[int]) -> None:
        """SUBACK: messages may come now."""
        for subscription, code in zip(self._subscriptions, codes, strict=False):
            if code >= REFUSED:
                self._counters["subscriptions_refused"] += 1
                _LOG.error("the MQTT broker refuses %s (reason code 0x%02x); mend its ACL", subscription.filter, code)
        self._ready = True
        self._changed(True, "")
        asyncio.get_running_loop().call_soon(self._pump)

    def received(self, message: Message) -> None:
        """PUBLISH."""
        self._receive(message)

    def taken(self, mid: int, code: int) -> None:
        """PUBACK."""
        publication = self._outbox.taken(mid)
        if publication is None:
            return
        self._settle(publication, code)
        self._pump()

    def lost(self, reason: str, end: End) -> None:
        """The connection is gone, or never was welcomed."""
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
        """MQTT 3.1.1 for good where MQTT 5 was refused; for one connection where the broker twice just hung up."""
        if end is End.OLD_PROTOCOL:
            self._version_5 = not self._version_5
        elif end is End.SILENT:
            self._early += 1
            if self._early >= EARLY_LOSSES:
                self._early, self._version_5, self._guessed = 0, not self._version_5, self._version_5
        elif self._guessed:
            self._version_5, self._guessed = True, False

    def _pump(self) -> None:
        if self._pumping:  # what one settled publication leads to is sent by the loop below, however many there are
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

    def _sent(self, publication: Publication) -> bool:
        """Send the outbox's first; False where the session cannot take it now."""
        mid = -1 if self._session is None else self._session.publish(publication)
        if mid == 0:
            self._settle(self._outbox.drop_first(), PACKET_TOO_LARGE)
        elif mid > 0 and not self._outbox.sent(mid).qos:
            self._settle(publication, 0)
        return mid >= 0

    def _fetch_again(self) -> None:
        """A broker sends again what is unacknowledged only on a new connection: take one, now that there is room."""
        if self._owing and self._ready and self._session is not None:
            self._owing = False
            self._counters["reconnects_owing"] += 1
            self._session.disconnect()

    def _settle(self, publication: Publication, code: int) -> None:
        self._counters["published" if code < REFUSED else "publications_refused"] += 1
        if publication.taken is not None:
            publication.taken(code)


async def _wait(event: asyncio.Event, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return
