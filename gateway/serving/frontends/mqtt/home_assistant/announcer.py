"""Announcer: it publishes documents for Home Assistant, and the readiness of models."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from gateway.common.domain.retry import draw_chance
from gateway.serving.domain.ports import InferenceEngine
from gateway.serving.frontends.mqtt.home_assistant.announcements import Announcements
from gateway.serving.frontends.mqtt.home_assistant.documents import model_topic
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan
from gateway.serving.frontends.mqtt.outbound.context import Outlet
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute

_LOG = logging.getLogger(__name__)
BIRTH = b"online"
"""Payload with which Home Assistant says that it has started."""


class Announcer:
    """Announcements of one gateway, and a retained topic of readiness for each model of its routes."""

    def __init__(
        self,
        announcements: Announcements,
        settings: MqttSettings,
        gateway_id: str,
        *,
        engine: InferenceEngine,
        outlet: Outlet,
    ) -> None:
        self._announcements, self._engine, self._outlet = announcements, engine, outlet
        self._topics = {model: model_topic(gateway_id, model) for model in sorted(announcements.models)}
        self._delay_s = settings.home_assistant.birth_delay_s
        self._ready: dict[str, bool] = {}
        self._timer: asyncio.TimerHandle | None = None

    def connected(self) -> None:
        """Publish the readiness of all models and all documents: the broker may have lost them."""
        self._ready.clear()
        self.readiness_changed()
        self._publish(self._announcements.connected())

    def readiness_changed(self) -> None:
        """Publish the readiness of those models that became ready or unready."""
        for model, topic in self._topics.items():
            ready = self._engine.ready(model)
            if self._ready.get(model) is not ready:
                self._ready[model] = ready
                word = b"online" if ready else b"offline"
                self._outlet.publish(OutgoingPublish(topic, word, 1, retain=True))

    def take(self, message: Message) -> bool:
        """Take a message of Home Assistant, or one of our documents from the broker. Return False for any other."""
        if message.topic == self._announcements.birth_topic:
            if message.payload == BIRTH and self._timer is None:  # many gateways must not announce at one time
                wait_s = self._delay_s * draw_chance()
                self._timer = asyncio.get_running_loop().call_later(wait_s, self._announce_again)
        elif self._announcements.is_document(message.topic):
            self._publish(self._announcements.received(message))
        else:
            return False
        self._outlet.acknowledge(message)
        return True

    def seen(self, route: MqttRoute, ready: Ready, plan: ResultPlan) -> None:
        """Announce a sensor that has a result, unless it is announced already."""
        self._publish(self._announcements.seen(route, ready.sensor, ready.manifest, plan))

    def close(self) -> None:
        """Announce nothing more."""
        if self._timer is not None:
            self._timer.cancel()

    def _announce_again(self) -> None:
        self._timer = None
        self._publish(self._announcements.again())

    def _publish(self, publications: Iterable[OutgoingPublish]) -> None:
        for publication in publications:
            if not self._outlet.publish(publication):
                self._announcements.dropped(publication)
