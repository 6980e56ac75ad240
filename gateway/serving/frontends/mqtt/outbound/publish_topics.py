"""Topics on which the gateway may publish results, messages of rules and answers (`publish_topics`). Pure.

The gateway's own topics (status, errors, readiness of models) and those of Home Assistant's discovery are not bounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.serving.frontends.mqtt.settings.presets import NAMESPACE, SPARKPLUG
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.topic_filters import TopicFilter, read_filter, topics_of

KEY = "publish_topics"


class PublishTopics:
    """Permitted topics: those that one of `filters` matches; without filters, all."""

    def __init__(self, filters: Sequence[str], gateway_id: str, counters: Counter[str]) -> None:
        """Read the filters, with the gateway's id for `<id>`. Raises ConfigurationError (table mqtt)."""
        self._gateway_id, self._counters = gateway_id, counters
        self._filters = tuple(_read(text.replace("<id>", gateway_id)) for text in filters)

    def check(self, topic: str) -> None:
        """Count and refuse a publication outside. Raises RequestError DENIED."""
        if not self._filters:
            return
        levels = topic.split("/")
        if not any(each.takes(levels) for each in self._filters):
            self._counters["publications_denied"] += 1
            problem = f"the gateway may not publish on '{topic:.200}'; permitted are {self} (mqtt.{KEY})"
            raise RequestError(Fault.DENIED, problem)

    def check_route(self, route: MqttRoute) -> None:
        """Refuse templates of which no topic is permitted, and commands to Sparkplug nodes that are not all permitted.

        A template that is permitted for some values only is checked with each message. Raises ConfigurationError.
        """
        if not self._filters:
            return
        templates = [(rule.table, rule.topic, rule.name) for rule in route.rule]
        if route.result.publish != "never":
            templates.insert(0, ("mqtt.route.result", route.result.topic, ""))
        for table, template, rule in templates:
            topics = topics_of(template, route, self._gateway_id, rule)
            if not any(each.overlaps(topics) for each in self._filters):
                problem = f"{template!r:.150} of route {route.name!r} is outside mqtt.{KEY} ({self})"
                raise ConfigurationError(f"{problem}; change it, or add it there", table=table, key="topic")
        for text in route.topics if route.media == SPARKPLUG else ():
            known = [level if level != "#" else "+" for level in read_filter(text).levels]
            group, _, node = [*known[1:4], "+", "+", "+"][:3]
            command = TopicFilter((NAMESPACE, group, "NCMD", node))
            if not any(each.covers(command) for each in self._filters):
                problem = f"must have '{command}', on which route {route.name!r} asks Sparkplug nodes for their births"
                raise ConfigurationError(problem, table="mqtt", key=KEY)

    def __str__(self) -> str:
        return f"{', '.join(map(str, self._filters)):.300}"


ANY_TOPIC = PublishTopics((), "", Counter())
"""No bound."""


def _read(text: str) -> TopicFilter:
    try:
        found = read_filter(text)
    except ValueError as error:
        raise ConfigurationError(f"{text!r:.150}: {error}", table="mqtt", key=KEY) from None
    if found.group or text.startswith("$"):
        raise ConfigurationError(
            f"{text!r:.150} must be a topic filter that does not begin with $", table="mqtt", key=KEY
        )
    return found
