"""What the routes of one broker share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.serving.domain.ports import InferenceEngine
from gateway.serving.frontends.mqtt.journal.journal import SampleJournal
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.outbound.contents import ResultPlan
from gateway.serving.frontends.mqtt.outbound.inputs import Ready
from gateway.serving.frontends.mqtt.outbound.publish_topics import ANY_TOPIC, PublishTopics
from gateway.serving.frontends.mqtt.settings.broker import MqttSettings
from gateway.serving.frontends.mqtt.settings.route import MqttRoute

Seen = Callable[[MqttRoute, Ready, ResultPlan], None]
"""Callback for each result of a sensor, before its messages are published."""


class Outlet(Protocol):
    """Interface of the link to the broker, as far as it is used here."""

    @property
    def full(self) -> bool: ...
    @property
    def receives_since_ns(self) -> int | None: ...
    def publish(self, publication: OutgoingPublish) -> bool: ...
    def acknowledge(self, message: Message) -> None: ...
    def pause(self, *, on: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class RouteContext:
    """Engine, settings, link and journal of one broker's routes. `topics` bounds where they publish."""

    engine: InferenceEngine
    settings: MqttSettings
    gateway_id: str
    outlet: Outlet
    counters: Counter[str]
    topics: PublishTopics = ANY_TOPIC
    journal: SampleJournal | None = None
    seen: Seen | None = None
