"""Permanent connection of one client id: one session at a time, its version, subscriptions, deadlines, reconnects.

A broker that is unavailable, at start or later, is no error.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from gateway.common.domain.retry import draw_chance, pause_s
from gateway.common.timeouts import wait_for
from gateway.serving.frontends.mqtt.messages import REFUSED, Message, Subscription
from gateway.serving.frontends.mqtt.session import events
from gateway.serving.frontends.mqtt.session.health import LinkHealth
from gateway.serving.frontends.mqtt.session.identity import MqttIdentity
from gateway.serving.frontends.mqtt.session.listener import End, Welcome
from gateway.serving.frontends.mqtt.session.sender import OutboxSender
from gateway.serving.frontends.mqtt.session.session import MqttSession
from gateway.serving.frontends.mqtt.session.subscriptions import SubscriptionRecord
from gateway.serving.frontends.mqtt.session.version_choice import BY_SETTING, ConnectOutcome, VersionChoice
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings

_log = logging.getLogger(__name__)
CONNECTION, SUBSCRIPTION = "connection", "subscription"
"""Kinds of problems."""
CONTESTED_CONNECTIONS = 3
"""Short connections in a row after which a second client with our client id is suspected.

MQTT 3.1.1 has no message that tells it, and mosquitto 2.0.11 does not send that of MQTT 5. A cut of the network or the
end of the broker ends the follower's connection as well: its PING is not answered then, and the count begins again.
"""
OUTCOMES = {
    End.SILENT: ConnectOutcome.CLOSED,
    End.UNANSWERED: ConnectOutcome.UNANSWERED,
    End.OLD_PROTOCOL: ConnectOutcome.UNSUPPORTED,
    End.REFUSED: ConnectOutcome.REFUSED,
    End.WELCOMED: ConnectOutcome.LOST,
    End.GIVEN_UP: ConnectOutcome.LOST,
    End.TAKEN_OVER: ConnectOutcome.LOST,
}


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Callbacks before and after the packets of one read, so that what follows from them happens together."""

    began: Callable[[], object]
    ended: Callable[[], object]


NO_BATCH = ReadBatch(bool, bool)
"""Callbacks that do nothing."""


class Connection:
    """Connection that subscribes and acknowledges, or one that only publishes and follows it (`leader`)."""

    def __init__(
        self,
        settings: MqttSettings,
        role: str,
        identity: MqttIdentity,
        sender: OutboxSender,
        *,
        counters: Counter[str],
        health: LinkHealth,
        batch: ReadBatch = NO_BATCH,
        subscriptions: Sequence[Subscription] = (),
        receive: Callable[[Message], None] | None = None,
        connack: Callable[[Welcome, int], None] | None = None,
        ready: Callable[[], None] | None = None,
        leader: Connection | None = None,
        record: SubscriptionRecord | None = None,
    ) -> None:
        self._settings, self._role, self._identity, self.sender = settings, role, identity, sender
        self._counters, self._health, self._leader = counters, health, leader
        self._subscriptions, self._receive, self._became_ready = subscriptions, receive, ready
        self._connack = connack
        self._asked: Sequence[Subscription] = ()
        self._record, self._gone = record, list[str]()
        """Filters that the broker may hold; those of them that are not wanted any more."""
        self._resets = self._follows = False
        """True if the next connection makes the broker forget the session; if it follows without delay."""
        self._session: MqttSession | None = None
        self._choice = VersionChoice(BY_SETTING[settings.protocol])
        self._epoch = 0
        self._failures = self._short = 0
        self._ended_alone = False
        """True if the follower's PING was answered after the end of the last connection."""
        self._began_s = 0.0
        self._follower: Connection | None = None
        if leader is not None:
            leader._follower = self
        self.welcome: Welcome | None = None
        """Content of the CONNACK of the current connection."""
        self.is_ready = False
        """True while the broker has accepted the connection and answered the subscriptions."""
        self.ready_since_ns = 0
        """Monotonic time at which it became ready last."""
        self.batch_began, self.batch_ended, self.in_batch = batch.began, batch.ended, False
        self.taken, self.writable = sender.taken, sender.pump
        """Handlers of a session's events that concern others: of PUBACK, and of the end of congestion."""
        self._paused = False
        self._reason, self._end = "", End.SILENT
        self._ended, self._stop = asyncio.Event(), asyncio.Event()
        self.accepted = asyncio.Event()
        """Set while a connection is accepted whose version is used."""
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    # ---- for the link ----------------------------------------------------------------------------------------------
    @property
    def choice(self) -> VersionChoice:
        """Return the version of the next connection; a follower uses its leader's."""
        return self._choice if self._leader is None else self._leader.choice

    def start(self) -> None:
        """Begin to connect, and return at once."""
        self._task = asyncio.get_running_loop().create_task(self._stay_connected(), name=f"mqtt-{self._role}")

    def acknowledge(self, message: Message) -> None:
        """Send a QoS 1 message's PUBACK, after the last of its routes. If its connection has ended, it comes again."""
        if message.qos and message.done() and self._session is not None:
            sent = self._session.acknowledge(message)
            self._counters["acknowledged" if sent else "acknowledgements_stale"] += 1

    def pause(self, *, on: bool) -> None:
        """Stop or resume reading the socket. A connection is read until it is ready."""
        self._paused = on
        if self._session is not None:
            self._session.read(on=not (on and self.is_ready))

    def flush(self) -> None:
        """Write what was sent in this pass of the event loop."""
        if self._session is not None:
            self._session.flush()

    async def stop(self, timeout_s: float) -> None:
        """Disconnect cleanly, or close the connection after `timeout_s`."""
        self._stop.set()
        if self._task is None:
            return
        if self._session is not None and self.is_ready:
            self._session.disconnect()
        else:
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=timeout_s)
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._session is not None:
            self._session.abandon()
        self._stop_timer()

    # ---- attempts --------------------------------------------------------------------------------------------------
    async def _stay_connected(self) -> None:
        while not self._stop.is_set():
            if self._leader is not None:
                await self._leader.accepted.wait()
            before, self._began_s = self.choice, time.monotonic()
            await self._one_connection()
            if self._stop.is_set():
                return
            if self._follows:
                self._follows = False
                continue
            held_s = time.monotonic() - self._began_s
            self._failures = 1 if held_s > self._settings.reconnect_max_s else self._failures + 1
            if self._end is End.TAKEN_OVER:
                self._counters["client_id_taken_over"] += 1
                _log.error(events.CLIENT_ID_TAKEN_OVER, self._identity.client_id)
            elif self._short >= CONTESTED_CONNECTIONS:
                self._counters["client_id_contested"] += 1
                _log.error(events.CLIENT_ID_CONTESTED, self._short, self._identity.client_id)
            self._health.begin(CONNECTION, self._role, f"the {self._role} connection is not made: {self._reason}")
            if self._leader is not None or not self._choice.tries_at_once(before):
                await self._wait()

    async def _one_connection(self) -> None:
        """Connect, and wait until the connection ends."""
        self._ended.clear()
        self._epoch += 1
        identity = replace(self._identity, clean=True) if self._resets else self._identity
        version_5, patience = self.choice.version_5, max(1, self._failures - 2)
        self._session = session = MqttSession(
            self._settings, identity, self, version_5=version_5, epoch=self._epoch, patience=patience
        )
        try:
            await session.connect()
        except Exception as error:  # noqa: BLE001  the task's boundary: the connection is tried again
            self._counters["connect_failures"] += 1
            self._reason, self._end = str(error).removeprefix("mqtt.") or type(error).__name__, End.REFUSED
            return
        await self._ended.wait()

    async def _wait(self) -> None:
        """Wait before the next attempt: longest if another client with our id would be disconnected by it."""
        least_s, most_s, chance = self._settings.reconnect_min_s, self._settings.reconnect_max_s, draw_chance()
        if self._end is End.TAKEN_OVER or self._short >= CONTESTED_CONNECTIONS:
            wait_s = most_s * (1 + chance) / 2
        else:
            wait_s = pause_s(self._failures, least_s, most_s, chance)
        _log.warning(events.BROKER_CONNECTION_LOST, self._role, self._settings.url, self._reason, wait_s)
        try:
            await wait_for(self._stop.wait(), wait_s)
        except TimeoutError:
            return

    def _decide(self, outcome: ConnectOutcome) -> None:
        """Choose the version of the next connection. A follower uses its leader's."""
        if self._leader is not None:
            return
        before, self._choice = self._choice, self._choice.after(outcome)
        if self._choice.tries_at_once(before) and not self._choice.version_5:
            _log.warning(events.PROTOCOL_VERSION_CHOSEN, self._settings.url, self._choice.stage.value)

    # ---- the session's listener ------------------------------------------------------------------------------------
    def welcomed(self, welcome: Welcome) -> None:
        """Handle CONNACK: subscribe, unless only the version was tried."""
        session, serves = self._session, self._choice.serves
        self._decide(ConnectOutcome.ACCEPTED)
        if self._connack is not None:
            self._connack(welcome, self._epoch)  # also for a guess of the version, which may begin the session
        if session is None:
            return
        if not serves or self._forgets(welcome):
            session.disconnect()
            return
        self._short = self._short if self._ended_alone else 0
        self.welcome = welcome
        self.accepted.set()
        self._counters["connections"] += 1
        _log.info(
            events.BROKER_CONNECTION_MADE,
            self._role,
            self._settings.url,
            welcome.client_id,
            welcome.version,
            welcome.receive_maximum,
            welcome.maximum_packet_bytes,
            welcome.maximum_qos,
            "yes" if welcome.retain else "no",
            welcome.keepalive_s,
        )
        if self._subscriptions:
            self._health.end_all(SUBSCRIPTION)
            self._unsubscribe(session, welcome)
            self._subscribe(self._subscriptions)
        else:
            self._begin(session, welcome)

    def subscribed(self, codes: Sequence[int]) -> None:
        """Handle SUBACK: messages may arrive now."""
        self._stop_timer()
        missing = repeat(REFUSED, max(0, len(self._asked) - len(codes)))
        answers = tuple(zip(self._asked, (*codes, *missing), strict=False))
        for subscription, code in answers:
            if code >= REFUSED or code < subscription.qos:
                self._not_granted(subscription, code)
            else:
                self._health.end(SUBSCRIPTION, subscription.filter)
        refused = [subscription for subscription, code in answers if code >= REFUSED]
        if refused:
            wait_s = self._settings.reconnect_max_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._subscribe, refused)
        if not self.is_ready and self._session is not None and self.welcome is not None:
            self._begin(self._session, self.welcome)

    def unsubscribed(self, codes: Sequence[int]) -> None:
        """Handle UNSUBACK: filters that the broker keeps are removed by a later connection."""
        kept = [one for one, code in zip(self._gone, codes, strict=False) if code >= REFUSED]
        ended = ", ".join(one for one in self._gone if one not in kept)
        _log.info(events.SUBSCRIPTIONS_ENDED, f"{ended or 'none':.500}")
        if kept:
            _log.error(events.SUBSCRIPTIONS_KEPT, f"{', '.join(kept):.500}")
        if self._record is not None:
            self._record.write({*(one.filter for one in self._subscriptions), *kept})

    def received(self, message: Message) -> None:
        """Handle PUBLISH."""
        if self._receive is not None and self.welcome is not None:
            self._receive(message)

    def answered(self) -> None:
        """Handle PINGRESP. If the leader's connection has ended, the broker ended that one alone."""
        if self._leader is not None:
            self._leader._ended_alone = True

    def lost(self, reason: str, end: End) -> None:
        """Handle the end of a connection, or of an attempt to connect."""
        self._stop_timer()
        if not self._follows:
            self._counters["connect_failures"] += not self.is_ready
            self._decide(OUTCOMES[end])
            is_short = end is End.WELCOMED and time.monotonic() - self._began_s < self._settings.reconnect_max_s
            self._short, self._ended_alone = self._short + 1 if is_short else 0, False
            if is_short and self._follower is not None and self._follower._session is not None:
                self._follower._session.ping()
        self.is_ready, self.welcome = False, None
        self.accepted.clear()
        self._reason, self._end = reason, end
        self.sender.end()
        if not self._stop.is_set():
            self._health.begin(CONNECTION, self._role, f"the {self._role} connection ended: {reason}")
        self._ended.set()

    # ---- internal --------------------------------------------------------------------------------------------------
    def _forgets(self, welcome: Welcome) -> bool:
        """Return True if this connection only serves to reset a session whose filters are not known.

        The first one shows that the broker has such a session, the second one is clean, and the third one is used. It
        is the same with MQTT 3.1.1, whose clean sessions end with their connection.
        """
        record = self._record
        if record is None or not (self._resets or (welcome.resumed and record.filters is None)):
            return False
        if self._resets:
            record.write(())
        else:
            self._counters["sessions_reset"] += 1
            _log.warning(events.SESSION_RESET, self._settings.url, self._identity.client_id)
        self._resets, self._follows = not self._resets, True
        return True

    def _unsubscribe(self, session: MqttSession, welcome: Welcome) -> None:
        """End the subscriptions of earlier configurations. All filters are in the record before the broker has them."""
        if self._record is not None:
            asked, held = {one.filter for one in self._subscriptions}, self._record.filters
            self._gone = sorted((held or set()) - asked) if welcome.resumed else []
            self._record.write(asked.union(self._gone))
            if self._gone:
                session.unsubscribe(self._gone)

    def _subscribe(self, subscriptions: Sequence[Subscription]) -> None:
        """Subscribe. Without SUBACK in time the connection is made again."""
        self._stop_timer()
        if self._session is not None:
            self._asked = subscriptions
            self._session.subscribe(subscriptions)
            limit_s = self._settings.subscribe_timeout_s
            self._timer = asyncio.get_running_loop().call_later(limit_s, self._end_silent)

    def _end_silent(self) -> None:
        limit_s = self._settings.subscribe_timeout_s
        self._counters["subscribe_timeouts"] += 1
        if self._session is not None:
            self._session.end(f"the broker did not answer the subscriptions within {limit_s:g} s")

    def _begin(self, session: MqttSession, welcome: Welcome) -> None:
        self.is_ready, self.ready_since_ns = True, time.monotonic_ns()
        self.sender.begin(session, welcome)
        self._health.end(CONNECTION, self._role)
        self.pause(on=self._paused)
        if self._became_ready is not None:
            self._became_ready()

    def _not_granted(self, subscription: Subscription, code: int) -> None:
        """Record and log a subscription that the broker refused, or granted with less quality of service."""
        topic, refused = subscription.filter, code >= REFUSED
        self._counters["subscriptions_refused" if refused else "subscriptions_reduced"] += 1
        what = f"refuses the subscription to '{topic:.200}' (reason code 0x{code:02x})"
        if not refused:
            what = f"grants '{topic:.200}' with QoS {code} instead of {subscription.qos}"
        self._health.begin(SUBSCRIPTION, topic, f"the broker {what}")
        if not self._health.is_due(SUBSCRIPTION, topic, asyncio.get_running_loop().time()):
            return
        if refused:
            _log.error(events.SUBSCRIPTION_REFUSED, topic, code, self._settings.reconnect_max_s)
        else:
            _log.error(events.SUBSCRIPTION_REDUCED, topic, code, subscription.qos)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
