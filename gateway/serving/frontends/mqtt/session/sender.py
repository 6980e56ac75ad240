"""Sender of the outbox of one connection, within the broker's limits and deadlines."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from gateway.common.timeouts import wait_for
from gateway.serving.frontends.mqtt.messages import REFUSED, OutgoingPublish
from gateway.serving.frontends.mqtt.session import events
from gateway.serving.frontends.mqtt.session.health import LinkHealth
from gateway.serving.frontends.mqtt.session.listener import Welcome
from gateway.serving.frontends.mqtt.session.outbox import Outbox
from gateway.serving.frontends.mqtt.session.session import MqttSession
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings

_log = logging.getLogger(__name__)
PACKET_TOO_LARGE = 0x95
PUBLICATION, SILENCE = "publication", "silence"
"""Kinds of problems."""
OTHER_TOPICS = "other topics"
"""Subject of refusals on topics that clients of the gateway choose."""


class OutboxSender:
    """Publications of one connection: they wait without a connection, and are sent again on the next one.

    `changed` is called when the outbox becomes full, and when it has room again.
    """

    def __init__(
        self,
        settings: MqttSettings,
        role: str,
        *,
        home: str,
        counters: Counter[str],
        health: LinkHealth,
        changed: Callable[[], None],
    ) -> None:
        self._settings, self._role, self._home = settings, role, home
        self._counters, self._health, self._changed = counters, health, changed
        self._outbox = Outbox(settings.max_outbox, settings.max_outbox_bytes, settings.max_inflight)
        self._session: MqttSession | None = None
        self._pumping = False
        self._refusals = f"{PUBLICATION} on {role}"
        self._drained = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.full = False
        """True from the outbox's limits until it has room again."""

    def __len__(self) -> int:
        return len(self._outbox)

    def publish(self, publication: OutgoingPublish) -> bool:
        """Send a publication as soon as the broker can accept it.

        Return False, counted, if it is dropped: QoS 0 without a connection.
        """
        session = self._session
        if publication.optional and (session is None or session.congested or self._outbox.waits):
            return False
        if not publication.qos and session is None:
            self._counters["dropped_broker_away"] += 1
            return False
        is_direct = not publication.qos and not len(self._outbox)  # nothing waits, so that the outbox is not needed
        if is_direct and session is not None and not session.congested and session.publish(publication, 0):
            self._counters["published"] += 1
            if publication.taken is not None:
                publication.taken(0)
            return True
        self._outbox.put(publication)
        self.pump()
        self._note_fullness()
        return True

    def publish_first(self, publication: OutgoingPublish) -> None:
        """Send a publication before all others, in place of those that wait on its topic."""
        self._outbox.put_first(publication)
        self.pump()

    def begin(self, session: MqttSession, welcome: Welcome) -> None:
        """Send on a new connection, first what was in flight on the last one."""
        self._health.end_all(self._refusals)
        self._outbox.reconnected(welcome.receive_maximum, welcome.maximum_qos)
        self._session = session
        asyncio.get_running_loop().call_soon(self.pump)

    def end(self) -> None:
        """Handle the end of the connection."""
        self._session = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._drained.set()

    def taken(self, mid: int, code: int) -> None:
        """Handle PUBACK."""
        self._health.end(SILENCE, self._role)
        publication = self._outbox.taken(mid)
        if publication is not None:
            self._settle(publication, code)
            self.pump()
            self._note_fullness()

    def pump(self) -> None:
        """Send what waits, as far as the broker and the kernel accept it."""
        if self._pumping:  # the loop below also sends what follows from a settled publication, without recursion
            return
        self._pumping = True
        try:
            while (session := self._session) and not session.congested and (publication := self._outbox.first()):
                mid = self._outbox.next_id()
                if not session.publish(publication, mid):
                    self._settle(self._outbox.drop_first(), PACKET_TOO_LARGE)
                elif not self._outbox.sent(mid, asyncio.get_running_loop().time()).qos:
                    self._settle(publication, 0)
        finally:
            self._pumping = False
        if not len(self._outbox):
            self._drained.set()
        elif self._timer is None and self._outbox.oldest_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._settings.publish_timeout_s, self._check_silence)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until the broker has accepted the whole outbox. Return False if it has not within `timeout_s`."""
        self._drained.clear()
        if len(self._outbox) and self._session is not None:
            try:
                await wait_for(self._drained.wait(), timeout_s)
            except TimeoutError:
                return False
        return not len(self._outbox)

    def _settle(self, publication: OutgoingPublish, code: int) -> None:
        if code >= REFUSED:
            self._counters["publications_refused"] += 1
            subject, topic = self._subject(publication), publication.topic
            if subject != OTHER_TOPICS:  # topics that clients choose are no problem of the link
                problem = f"the broker refuses publications on '{topic:.200}' (reason code 0x{code:02x})"
                self._health.begin(self._refusals, subject, problem)
            if self._health.is_due(PUBLICATION, subject, asyncio.get_running_loop().time()):
                _log.error(events.PUBLICATION_REFUSED, topic, code)
        else:
            self._counters["published"] += 1
            if publication.qos and len(self._health):
                self._health.end(self._refusals, self._subject(publication))
        if publication.taken is not None:
            publication.taken(code)

    def _subject(self, publication: OutgoingPublish) -> str:
        """Return the subject of a refusal: the topic, unless a client chose it."""
        topic = publication.topic
        is_own = topic.startswith(self._home) and not topic.startswith(f"{self._home}reply/")
        return topic if is_own else OTHER_TOPICS

    def _note_fullness(self) -> None:
        if self.full != self._outbox.full:
            self.full = not self.full
            self._counters["outbox_filled"] += self.full
            self._changed()

    def _check_silence(self) -> None:
        """End a connection whose oldest publication has no PUBACK in time. An unread socket proves no silence."""
        self._timer = None
        session, oldest_s = self._session, self._outbox.oldest_s
        if session is None or oldest_s is None:
            return
        loop, limit_s = asyncio.get_running_loop(), self._settings.publish_timeout_s
        due_s = (max(oldest_s, session.reading_since_s) if session.reading else loop.time()) + limit_s
        if loop.time() < due_s:
            self._timer = loop.call_at(due_s, self._check_silence)
            return
        problem = f"the broker did not acknowledge a publication within {limit_s:g} s"
        self._counters["publish_timeouts"] += 1
        self._health.begin(SILENCE, self._role, problem)
        session.end(problem)
