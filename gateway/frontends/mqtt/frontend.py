"""MQTT frontend, as the daemon starts and stops it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from gateway.domain.errors import ConfigurationError
from gateway.domain.ports import InferenceEngine
from gateway.frontends.mqtt.home_assistant.announcements import Announcements
from gateway.frontends.mqtt.home_assistant.announcer import Announcer
from gateway.frontends.mqtt.messages import Message, OutgoingPublish, Subscription
from gateway.frontends.mqtt.pipeline import Pipeline
from gateway.frontends.mqtt.routes.routing import Router
from gateway.frontends.mqtt.session.identity import MqttIdentity, read_password, tls_context
from gateway.frontends.mqtt.session.link import Link
from gateway.frontends.mqtt.settings import MqttSettings

_LOG = logging.getLogger(__name__)
GOODBYE_S = 2.0
"""Time for the `offline` message and the disconnect after the grace period."""


class MqttFrontend:
    """MQTT frontend for requests and sensors. Construct, `start`, `stop`; all on one event loop."""

    def __init__(self, engine: InferenceEngine, settings: MqttSettings, gateway_id: str) -> None:
        """Set up the frontend; `settings.url` must be set. Raises ConfigurationError for routes that cannot work."""
        if not gateway_id or set(gateway_id) & set("+#/\0") or len(gateway_id) > 128:
            problem = f"{gateway_id!r:.150} must be 1 to 128 characters without + # and /; it is part of topics"
            raise ConfigurationError(problem, table="gateway", key="id")
        self._engine, self._settings, self._id = engine, settings, gateway_id
        self._router = Router(settings.route, gateway_id)
        self._counters: Counter[str] = Counter()
        self._link: Link | None = None
        self._announcer: Announcer | None = None
        self._pipeline: Pipeline | None = None
        self.online = asyncio.Event()

    async def start(self) -> None:
        """Begin to connect and return at once, even if the broker is unavailable.

        Raises ConfigurationError if the password, certificate or key cannot be read.
        """
        settings = self._settings
        identity = MqttIdentity(self._id, self._status("offline"), read_password(settings), tls_context(settings))
        asked = Subscription(f"edge/{self._id}/infer/#", 1)
        announcements = Announcements(settings.home_assistant, self._id, settings.route, self._counters)
        discovery = announcements.subscriptions if settings.home_assistant.enabled else ()
        self._link = Link(
            settings,
            identity,
            (asked, *self._router.subscriptions, *discovery),
            receive=self._receive,
            changed=self._changed,
            counters=self._counters,
        )
        if discovery:
            self._announcer = Announcer(announcements, settings, self._id, engine=self._engine, outlet=self._link)
        self._pipeline = Pipeline(
            self._engine,
            settings,
            self._id,
            router=self._router,
            outlet=self._link,
            counters=self._counters,
            seen=None if self._announcer is None else self._announcer.seen,
        )
        self._link.start()

    async def stop(self, grace_s: float) -> None:
        """Accept no more messages, finish those in progress, publish `offline` and disconnect.

        Messages that are not finished after `grace_s` stay unacknowledged: the broker sends them again after the next
        start.
        """
        if self._link is None or self._pipeline is None:
            return
        if self._announcer is not None:
            self._announcer.close()
        ends_s = asyncio.get_running_loop().time() + grace_s
        await self._pipeline.drain(grace_s)
        if self._link.connected:
            self._link.publish(self._status("offline"), urgent=True)
        await self._link.drain(max(GOODBYE_S, ends_s - asyncio.get_running_loop().time()))
        await self._link.stop(GOODBYE_S)
        self.online.clear()

    def readiness_changed(self) -> None:
        """Publish the readiness of models, which may have changed."""
        if self._announcer is not None and self._link is not None and self._link.connected:
            self._announcer.readiness_changed()

    def counters(self) -> Mapping[str, int]:
        """Return counters since the start, and gauges: connected (0 or 1), queued, running, sensors, outbox."""
        gauges = {} if self._pipeline is None else self._pipeline.gauges
        connected = self._link is not None and self._link.connected
        waiting = 0 if self._link is None else self._link.waiting
        return {**self._counters, **gauges, "outbox": waiting, "connected": int(connected)}

    def _receive(self, message: Message) -> None:
        if self._announcer is not None and self._announcer.take(message):
            return
        if self._pipeline is not None:
            self._pipeline.receive(message)

    def _changed(self, connected: bool, reason: str) -> None:
        if connected and self._link is not None:
            _LOG.info("connected to the MQTT broker at %s", self._settings.url)
            self._link.publish(self._status("online"), urgent=True)
            if self._announcer is not None:
                self._announcer.connected()
            self.online.set()
        else:
            _LOG.info("no longer connected to the MQTT broker at %s: %s", self._settings.url, reason)
            self.online.clear()

    def _status(self, word: str) -> OutgoingPublish:
        return OutgoingPublish(f"edge/{self._id}/status", word.encode(), qos=1, retain=True)
