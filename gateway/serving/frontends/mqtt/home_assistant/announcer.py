"""Announcer: it publishes documents for Home Assistant, the readiness of models, and which are degraded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from gateway.common.domain.errors import RequestError
from gateway.common.domain.retry import draw_chance
from gateway.common.domain.statistics import Placement
from gateway.serving.domain.cameras import KnownCamera
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
    """Announcements of one gateway, and retained topics of readiness and degradation for each model of its routes."""

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
        self._id = gateway_id
        self._topics = self._model_topics()
        self._delay_s = settings.home_assistant.birth_delay_s
        self._told: dict[str, bytes] = {}
        """Payloads of models' topics, as they were published last."""
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, routes: Sequence[MqttRoute], cameras: Sequence[KnownCamera]) -> None:
        """Take other routes and cameras, and remove what the broker keeps of those that are gone."""
        self._publish(self._announcements.follow(routes, cameras))
        before, self._topics = self._topics, self._model_topics()
        for model in before.keys() - self._topics.keys():
            for topic in before[model]:
                self._told.pop(topic, None)
                self._outlet.publish(OutgoingPublish(topic, b"", 1, retain=True))
        self.readiness_changed()

    def _model_topics(self) -> dict[str, tuple[str, str]]:
        return {
            model: (model_topic(self._id, model), model_topic(self._id, model, "degraded"))
            for model in sorted(self._announcements.models)
        }

    def connected(self) -> None:
        """Publish the state of all models and all documents: the broker may have lost them."""
        self._told.clear()
        self.readiness_changed()
        self._publish(self._announcements.connected())

    def readiness_changed(self) -> None:
        """Publish the state of those models that became ready or unready, degraded or whole."""
        for model, (status, degraded) in self._topics.items():
            states = {status: b"online" if self._engine.ready(model) else b"offline"}
            with suppress(RequestError):  # unknown, or not open yet: it has no variant that could lack
                states[degraded] = _degraded(self._engine.placement(model))
            for topic, payload in states.items():
                if self._told.get(topic) != payload:
                    self._told[topic] = payload
                    self._outlet.publish(OutgoingPublish(topic, payload, 1, retain=True))

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


def _degraded(placement: Placement) -> bytes:
    """Return the payload that says which variant serves, and which better ones failed in service."""
    serving = {"variant": placement.variant, "accelerator": placement.accelerator}
    return msgspec.json.encode({"degraded": bool(placement.degraded), **serving, "reason": placement.degraded})
