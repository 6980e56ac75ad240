"""Announcements to Home Assistant: which documents are at the broker, and which must be published or removed.

The broker's retained documents are the record: at each connection they are received once. Those of sensors whose route
is gone are removed. Those of other sensors stay until the sensor has a result.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.common.domain.manifest import ModelManifest
from gateway.serving.domain.cameras import KnownCamera
from gateway.serving.frontends.mqtt.home_assistant import documents
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish, Subscription
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan
from gateway.serving.frontends.mqtt.settings.broker import HomeAssistantSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute

_LOG = logging.getLogger(__name__)
DOCUMENT_LIMIT_BYTES = 64 * 1024
"""Largest retained document that is read; a larger one on our topics is removed."""


class Announcements:
    """Documents of the gateway and its sensors. Each method returns what must be published."""

    def __init__(
        self,
        settings: HomeAssistantSettings,
        gateway_id: str,
        routes: Sequence[MqttRoute],
        counters: Counter[str],
        cameras: Sequence[KnownCamera] = (),
    ) -> None:
        self._settings, self._id, self._counters = settings, gateway_id, counters
        self._routes = {route.name: route for route in routes}
        self._cameras = cameras
        self._topic = f"{settings.prefix}/device/{documents.node_id(gateway_id)}"
        self._at_broker: dict[str, bytes] = {}
        """Documents by object id, as they were published or received."""
        self._current: OrderedDict[str, ModelManifest] = OrderedDict()
        """Manifest that the announcement of a sensor was made from, by object id."""
        self._former = b"{}"
        """The gateway's own document as the broker had it at first."""
        self._is_full = False

    def follow(self, routes: Sequence[MqttRoute], cameras: Sequence[KnownCamera]) -> list[OutgoingPublish]:
        """Take other routes and cameras. Return the removals of those that are gone, and what the gateway then has."""
        self._routes, self._cameras = {route.name: route for route in routes}, cameras
        self._current.clear()  # a camera may have pictures now
        known = self._at_broker.items()
        gone = [one for one, payload in known if one != documents.GATEWAY_OBJECT and not self._is_ours(one, payload)]
        self._counters["announcements_removed"] += len(gone)
        for object_ in gone:
            self._forget(object_)
        removals = [self._publication(object_, b"") for object_ in gone]
        if documents.GATEWAY_OBJECT in self._at_broker and self._describe_gateway():
            own = documents.GATEWAY_OBJECT
            removals.append(self._publication(own, self._at_broker[own]))
        return removals

    @property
    def models(self) -> frozenset[str]:
        """Return the models of all routes."""
        routed = {name for route in self._routes.values() for name in route.cameras}
        named = {camera.model for camera in self._cameras if camera.name in routed}
        return frozenset(named | {route.model for route in self._routes.values() if route.model})

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Return the topics of Home Assistant's status, and of our own documents."""
        return Subscription(self.birth_topic, 1), Subscription(f"{self._topic}/+/config", 1, retained=True)

    @property
    def birth_topic(self) -> str:
        """Return the topic on which Home Assistant says that it has started."""
        return f"{self._settings.prefix}/status"

    def is_document(self, topic: str) -> bool:
        """Return True if `topic` is one of our documents'."""
        return topic.startswith(f"{self._topic}/") and topic.endswith("/config")

    def connected(self) -> list[OutgoingPublish]:
        """Return all documents, with the gateway's own: the broker may have lost them."""
        self._describe_gateway()
        return self.again()

    def _describe_gateway(self) -> bool:
        """Make the gateway's own document; return True if it differs from the one before."""
        before = self._at_broker.get(documents.GATEWAY_OBJECT, self._former)
        document = documents.gateway_document(self._id, sorted(self.models))
        self._at_broker[documents.GATEWAY_OBJECT] = made = msgspec.json.encode(
            documents.with_removals(document, _read(before))
        )
        return made != before

    def received(self, message: Message) -> list[OutgoingPublish]:
        """Take a document from the broker. Return its removal if it is of no sensor of ours any more.

        An empty one was deleted by an operator or by us: the sensor's next result announces it again.
        """
        object_ = self._object_of(message.topic)
        if not message.payload:
            self._forget(object_)
            return []
        if message.retain and object_ == documents.GATEWAY_OBJECT:  # of an earlier process: it may have more models
            if (own := self._at_broker.get(object_)) is None:
                self._former = message.payload
                return []
            whole = msgspec.json.encode(documents.with_removals(_read(own), _read(message.payload)))
            self._at_broker[object_] = whole
            return [self._publication(object_, whole)] if whole != own else []
        if not message.retain or object_ in self._at_broker:
            return []
        if self._is_ours(object_, message.payload) and len(self._at_broker) <= self._settings.max_sensors:
            self._at_broker[object_] = message.payload
            return []
        self._counters["announcements_removed"] += 1
        return [self._publication(object_, b"")]

    def seen(self, route: MqttRoute, sensor: str, manifest: ModelManifest, plan: ResultPlan) -> list[OutgoingPublish]:
        """Return the announcement of a sensor that has a result, if it is new or differs."""
        object_ = documents.object_id(route.name, sensor)
        if self._current.get(object_) is manifest or not self._has_room(object_):
            return []
        pictured = any(camera.has_pictures and camera.name == sensor for camera in self._cameras)
        document = documents.sensor_document(self._id, route, sensor, manifest, plan, has_pictures=pictured)
        self._current[object_] = manifest
        if len(self._current) > self._settings.max_sensors:
            self._current.popitem(last=False)
        if document is None:
            return [self._publication(object_, b"")] if self._at_broker.pop(object_, None) else []
        former = self._at_broker.get(object_)
        payload = msgspec.json.encode(documents.with_removals(document, _read(former or b"{}")))
        if payload == former:
            return []
        self._at_broker[object_] = payload
        return [self._publication(object_, payload)]

    def again(self) -> list[OutgoingPublish]:
        """Return all documents: Home Assistant has started."""
        return [self._publication(object_, payload) for object_, payload in self._at_broker.items()]

    def dropped(self, publication: OutgoingPublish) -> None:
        """Forget a document that could not be published: the sensor's next result announces it again."""
        self._forget(self._object_of(publication.topic))

    def _has_room(self, object_: str) -> bool:
        """Return True if a sensor may be announced. The log says once that some are not."""
        if object_ in self._at_broker or len(self._at_broker) <= self._settings.max_sensors:
            return True
        self._counters["results_unannounced"] += 1
        if not self._is_full:
            limit = "mqtt.home_assistant.max_sensors"
            _LOG.warning("Home Assistant gets no more sensors than %d; raise %s", self._settings.max_sensors, limit)
        self._is_full = True
        return False

    def _is_ours(self, object_: str, payload: bytes) -> bool:
        """Return True if a document is of a sensor, or a camera, of a configured route."""
        device = _read(payload).get("device")
        sensor = device.get("serial_number") if isinstance(device, dict) else None
        return isinstance(sensor, str) and any(
            documents.object_id(name, sensor) == object_ and (not route.cameras or sensor in route.cameras)
            for name, route in self._routes.items()
        )

    def _forget(self, object_: str) -> None:
        self._at_broker.pop(object_, None)
        self._current.pop(object_, None)

    def _object_of(self, topic: str) -> str:
        return topic.removeprefix(f"{self._topic}/").removesuffix("/config")

    def _publication(self, object_: str, payload: bytes) -> OutgoingPublish:
        return OutgoingPublish(f"{self._topic}/{object_}/config", payload, 1, retain=True)


def _read(payload: bytes) -> dict[str, Any]:
    """Return a document; an empty one if it cannot be read."""
    if len(payload) > DOCUMENT_LIMIT_BYTES:
        return {}
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
