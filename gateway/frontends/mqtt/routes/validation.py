"""Check of one broker's routes and topics: what `config check` finds is what a start refuses."""

from __future__ import annotations

from collections import Counter

from gateway.domain.errors import ConfigurationError
from gateway.frontends.mqtt.routes.publish_topics import PublishTopics
from gateway.frontends.mqtt.routes.reading import PayloadReader
from gateway.frontends.mqtt.routes.routing import Router
from gateway.frontends.mqtt.settings import MqttSettings
from gateway.frontends.mqtt.templates import is_topic


def checked_routes(
    settings: MqttSettings, gateway_id: str, counters: Counter[str] | None = None
) -> tuple[Router, PublishTopics]:
    """Return the routes of one broker and the topics that they may publish on.

    Raises ConfigurationError for an id that is no level of a topic, and for routes that cannot work.
    """
    if not is_topic(gateway_id) or "/" in gateway_id or len(gateway_id) > 128:
        problem = f"{gateway_id!r:.150} must be 1 to 128 characters without + # and /; it is part of topics"
        raise ConfigurationError(problem, table="gateway", key="id")
    router = Router(settings.route, gateway_id)
    topics = PublishTopics(settings.publish_topics, gateway_id, Counter() if counters is None else counters)
    for route in settings.route:
        topics.check_route(route)
        PayloadReader(route)
    return router, topics
