"""Topics to routes, and messages to sensors. Topic filters are checked when the gateway is configured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError
from gateway.serving.frontends.mqtt.inbound.payloads.rows import topic_part, topic_range
from gateway.serving.frontends.mqtt.messages import Message, Subscription
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.topic_filters import TopicFilter, read_filter, topics_of

SENSOR_LIMIT_CHARS = 256
TOPICS_REMEMBERED, TOPIC_REMEMBERED_CHARS = 20_000, 256


_GATEWAYS = TopicFilter(("edge", "#"))
OWN_LEVELS = frozenset({(), ("+",), ("infer",), ("status",), ("errors",), ("models",), ("cameras",), ("reply",)})
"""Third level of topics below `edge/<id>/` that results and rules may not use."""


class Router:
    """Checked routes of topics: no message of the gateway comes back to the route that published it.

    Filters of routes may overlap. `subscriptions` do not: brokers differ in how often they send what several match.
    """

    def __init__(self, routes: Sequence[MqttRoute], gateway_id: str) -> None:
        """Check the routes. Raises ConfigurationError with the route and its key."""
        self._own = read_filter(f"edge/{gateway_id}/#")
        self._filters: list[tuple[TopicFilter, MqttRoute]] = []
        self._published: list[TopicFilter] = []
        self._known: dict[str, tuple[MqttRoute, ...]] = {}
        for route in routes:
            for text in route.topics:
                self._add(route, text)
        self._check_published(routes, gateway_id)
        self._covers = list(self._disjoint())
        self.subscriptions = tuple(Subscription(str(cover), qos) for cover, qos in self._covers)

    def routes(self, topic: str) -> tuple[MqttRoute, ...]:
        """Return the routes of `topic`. Results are cached, up to a limit."""
        try:
            return self._known[topic]
        except KeyError:
            pass
        levels = topic.split("/")
        found = tuple({route.name: route for filter_, route in self._filters if filter_.takes(levels)}.values())
        if len(topic) <= TOPIC_REMEMBERED_CHARS:
            if len(self._known) >= TOPICS_REMEMBERED:
                self._known.clear()
            self._known[topic] = found
        return found

    def is_subscribed(self, topic: str) -> bool:
        """Return True if one of the subscriptions matches `topic`."""
        return any(cover.takes(topic.split("/")) for cover, _ in self._covers)

    def is_taken(self, topic: str) -> bool:
        """Return True if a route takes messages on `topic`, or publishes results or messages of rules there."""
        levels = topic.split("/")
        return bool(self.routes(topic)) or any(topics.takes(levels) for topics in self._published)

    def _check_published(self, routes: Sequence[MqttRoute], gateway_id: str) -> None:
        """Refuse topics of results and rules that lead back to their route, or are a gateway's own.

        Results of one route may be samples of another one, such as one that joins them with those of a sensor. In a
        circle a message would be taken for ever. Raises ConfigurationError.
        """
        leads = {route.name: set[str]() for route in routes}
        found = list[tuple[MqttRoute, str, str, TopicFilter, set[str]]]()
        for route in routes:
            templates = [("mqtt.route.result", route.result.topic, "")]
            templates += [(rule.table, rule.topic, rule.name) for rule in route.rule]
            for table, template, rule in templates:
                topics = topics_of(template, route, gateway_id, rule)
                takers = {owner.name for other, owner in self._filters if topics.overlaps(other)}
                leads[route.name] |= takers
                found.append((route, table, template, topics, takers))
        for route, table, template, topics, takers in found:
            if back := sorted(taker for taker in takers if route.name in _reached(taker, leads)):
                problem = f"{template!r:.150} may lead to route {back[0]!r}, and from there back to {route.name!r}"
                remedy = "begin it with a word that is in no filter of these routes"
                raise ConfigurationError(f"{problem}; {remedy}", table=table, key="topic")
            own = topics.levels[:2] == ("edge", gateway_id) and topics.levels[2:3] not in OWN_LEVELS
            if topics.overlaps(_GATEWAYS) and not own:
                problem = f"{template!r:.150} may be a topic of the gateway; begin it with another word than edge"
                raise ConfigurationError(f"{problem}, or with edge/{{gateway}}/results/", table=table, key="topic")
            self._published.append(topics)

    def _add(self, route: MqttRoute, text: str) -> None:
        try:
            filter_ = read_filter(text)
        except ValueError as error:
            raise _refused(route, "topics", f"{text!r:.150}: {error}") from None
        if filter_.overlaps(self._own):
            raise _refused(route, "topics", f"{text!r:.150} takes in {self._own}, which is our own")
        self._filters.append((filter_, route))
        _check_level(route, filter_)

    def _disjoint(self) -> Iterator[tuple[TopicFilter, int]]:
        """Yield filters that do not overlap and match all topics of the routes, with their quality of service.

        Raises ConfigurationError if there are none.
        """
        found: list[tuple[TopicFilter, int, MqttRoute]] = []
        for filter_, route in self._filters:
            cover, qos = filter_, route.qos
            while at := [at for at, (one, *_) in enumerate(found) if one.group == cover.group and one.overlaps(cover)]:
                other, other_qos, _ = found.pop(at[0])
                cover, qos = cover.cover(other), max(qos, other_qos)
            found.append((cover, qos, route))
        for cover, qos, route in found:
            if cover.overlaps(self._own):
                problem = (
                    f"topics of several routes overlap, and '{cover!s:.150}', which covers them, takes in {self._own}"
                )
                raise _refused(route, "topics", f"{problem}, which is our own; let them begin with a level without '+'")
            for other, _, owner in found:
                if cover.group and other.group != cover.group and other.overlaps(cover):
                    problem = f"'{cover!s:.150}' overlaps '{other!s:.150}' of route {owner.name!r}, which is not shared"
                    problem += " in this group; the broker would send messages twice"
                    raise _refused(route, "topics", problem)
            yield cover, qos


def sensor_of(rule: str, message: Message, document: Any) -> str:
    """Return the sensor's name by the route's `sensor` rule. Raises RequestError INVALID if the message has none.

    `document` is the decoded payload, None if it is none. In an array of objects the first one names the sensor.
    """
    name = name_of(rule, message, document)
    if not name:
        message_ = f"the message does not name its sensor: {rule} must be 1 to {SENSOR_LIMIT_CHARS} characters"
        raise RequestError(Fault.INVALID, message_)
    return name


def name_of(rule: str, message: Message, document: Any) -> str:
    """Return the text or integer that `rule` finds, as `sensor_of`; "" if there is none, or it is too long."""
    if rule == "topic":
        name: Any = message.topic
    elif rule.startswith("topic["):
        name = topic_part(message.topic, topic_range(rule))
    elif rule.startswith("property."):
        name = message.user_property(rule.removeprefix("property."))
    else:
        name = document[0] if isinstance(document, list) and document else document
        for key in rule.split(".")[1:]:
            name = name.get(key) if isinstance(name, Mapping) else None
    if type(name) is int:
        name = str(name)
    return name if isinstance(name, str) and len(name) <= SENSOR_LIMIT_CHARS else ""


def _check_level(route: MqttRoute, filter_: TopicFilter) -> None:
    """Check that every topic that the filter matches has the levels of sensor and key. Raises ConfigurationError."""
    for key, rule in (("sensor", route.sensor), ("key", route.key), ("quota.by", route.quota.by)):
        fixed = [level for level in filter_.levels if level != "#"]
        if not rule.startswith("topic["):
            continue
        if topic_range(rule).start >= len(fixed) and filter_.levels[-1] != "#":
            topic = "/".join(filter_.levels)
            problem = f"{rule} is beyond the {len(fixed)} levels of {topic!r}; levels count from 0"
            raise _refused(route, key, problem)


def _reached(name: str, leads: Mapping[str, Collection[str]]) -> set[str]:
    """Return a route and all to which its messages lead."""
    found, left = set[str](), [name]
    while left:
        if (one := left.pop()) not in found:
            found.add(one)
            left += leads[one]
    return found


def _refused(route: MqttRoute, key: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem, table=route.table, key=key)
