"""Link of the gateway to its broker: two connections, so that results never wait behind samples (decision 0044).

The main connection subscribes, acknowledges, and has the Will and the status. The results connection only publishes. A
full outbox of results leaves the socket of the main connection unread: the broker keeps the messages, and none is
dropped.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish, Subscription
from gateway.serving.frontends.mqtt.session import events
from gateway.serving.frontends.mqtt.session.connection import CONNECTION, Connection, ReadBatch
from gateway.serving.frontends.mqtt.session.health import LinkHealth
from gateway.serving.frontends.mqtt.session.identity import MqttIdentity
from gateway.serving.frontends.mqtt.session.listener import Welcome
from gateway.serving.frontends.mqtt.session.sender import OutboxSender
from gateway.serving.frontends.mqtt.session.subscriptions import SubscriptionRecord
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings

_log = logging.getLogger(__name__)
MAIN, RESULTS = "main", "results"
"""Roles of the two connections."""
NOT_YET = {(CONNECTION, role): f"the {role} connection is not made yet" for role in (MAIN, RESULTS)}
"""Problems before the first connection."""


class Link:
    """Both connections and their health.

    `connack` is called with the CONNACK and the number of each main connection before its messages, `receive` with
    every message, `changed` when `connected` changes or the status is to be published again,
    `room` when the outbox of results has room again, `batch` before and after the messages of one read.
    """

    def __init__(
        self,
        settings: MqttSettings,
        home: str,
        identities: tuple[MqttIdentity, MqttIdentity],
        subscriptions: Sequence[Subscription],
        *,
        connack: Callable[[Welcome, int], None],
        receive: Callable[[Message], None],
        changed: Callable[[], None],
        room: Callable[[], None],
        batch: ReadBatch,
        counters: Counter[str],
        record: SubscriptionRecord | None = None,
    ) -> None:
        self._settings, self._changed, self._room, self._batch = settings, changed, room, batch
        self._paused = False
        self.health = LinkHealth(settings.error_repeat_s, self._health_changed, NOT_YET)
        status = OutboxSender(settings, MAIN, home=home, counters=counters, health=self.health, changed=_ignore)
        results = OutboxSender(
            settings, RESULTS, home=home, counters=counters, health=self.health, changed=self._fullness_changed
        )
        main_identity, results_identity = identities
        batch = ReadBatch(self._batch_began, self._batch_ended)
        self._main = Connection(
            settings,
            MAIN,
            main_identity,
            status,
            counters=counters,
            health=self.health,
            batch=batch,
            subscriptions=subscriptions,
            receive=receive,
            connack=connack,
            ready=self._main_ready,
            record=record,
        )
        self._results = Connection(
            settings,
            RESULTS,
            results_identity,
            results,
            counters=counters,
            health=self.health,
            batch=batch,
            leader=self._main,
        )
        self.publish: Callable[[OutgoingPublish], bool] = results.publish
        """Send a result, error or reply as soon as the broker can accept it.

        Return False, counted, if it is dropped: QoS 0 without a connection.
        """
        self.acknowledge: Callable[[Message], None] = self._main.acknowledge
        """Send a QoS 1 message's PUBACK. If its connection has ended, the broker sends the message again."""

    @property
    def connected(self) -> bool:
        """Return True if the broker grants everything: both connections, the subscriptions, our publications."""
        return not len(self.health)

    @property
    def has_status(self) -> bool:
        """Return True if the status can be published now."""
        return self._main.is_ready

    @property
    def receives_since_ns(self) -> int | None:
        """Return the monotonic time since which messages come; None if there is no connection for them."""
        return self._main.ready_since_ns if self._main.is_ready else None

    @property
    def full(self) -> bool:
        """Return True if no more results should be made until `room` is called."""
        return self._results.sender.full

    @property
    def waiting(self) -> int:
        """Return the number of results, errors and replies that the broker has not accepted yet."""
        return len(self._results.sender)

    @property
    def welcomes(self) -> Mapping[str, Welcome]:
        """Return what the broker said when it accepted the current connections, by role."""
        made = {MAIN: self._main.welcome, RESULTS: self._results.welcome}
        return {role: welcome for role, welcome in made.items() if welcome is not None}

    @property
    def packet_limit_bytes(self) -> int | None:
        """Return the size of the largest publication that the broker takes; None without a connection for results."""
        welcome = self._results.welcome
        return None if welcome is None else welcome.maximum_packet_bytes

    def start(self) -> None:
        """Begin to connect, and return at once."""
        self._main.start()
        self._results.start()

    def publish_status(self, publication: OutgoingPublish) -> None:
        """Send a status on the main connection, in place of one that was not sent yet."""
        self._main.sender.publish_first(publication)

    def pause(self, *, on: bool) -> None:
        """Stop or resume reading messages. They are not read either while the outbox is full."""
        if on != self._paused:  # a change of `full` does so, too
            self._paused = on
            self._main.pause(on=on or self.full)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the broker has accepted all results. Return False if it has not within `timeout_s`."""
        return await self._results.sender.drain(timeout_s)

    async def stop(self, status: OutgoingPublish, timeout_s: float) -> None:
        """Publish the last status and disconnect, or close the connections after `timeout_s`."""
        self._main.pause(on=False)  # the PUBACK of the status arrives by this socket
        if self._main.is_ready:
            self._main.sender.publish_first(status)
            await self._main.sender.drain(timeout_s)
        await self._results.stop(timeout_s)
        await self._main.stop(timeout_s)

    def _batch_began(self) -> None:
        """Let everything wait for `_batch_ended`: without a write of its own, and without a callback that writes it."""
        self._main.in_batch = self._results.in_batch = True
        self._batch.began()

    def _batch_ended(self) -> None:
        """Let the inferences of one read run together, and write their results and acknowledgements."""
        try:
            self._batch.ended()
        finally:
            self._main.in_batch = self._results.in_batch = False
            self._results.flush()
            self._main.flush()

    def _main_ready(self) -> None:
        """Let the status be published if it is not `online`: the broker may keep an old one."""
        if not self.connected:
            self._changed()

    def _fullness_changed(self) -> None:
        self._main.pause(on=self._paused or self.full)
        if not self.full:
            self._room()

    def _health_changed(self) -> None:
        if self.connected:
            _log.info(events.LINK_COMPLETED, self._settings.url)
        else:
            _log.warning(events.LINK_DEGRADED, self._settings.url, "; ".join(self.health))
        self._changed()


def _ignore() -> None:
    """Do nothing: the outbox of the status never holds more than two publications of one topic."""
