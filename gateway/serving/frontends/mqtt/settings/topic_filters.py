"""Topic filters of subscriptions, and those that match all topics of a template (MQTT 5, 4.7). Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.templates import RULE_NAMES, read_template


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """Levels of a subscription's filter; `group` is set for `$share/<group>/…` (MQTT 5, 4.8.2)."""

    levels: tuple[str, ...]
    group: str = ""

    def takes(self, topic: Sequence[str]) -> bool:
        """Return True if the filter matches the levels of `topic`.

        A wildcard at the first level does not match topics that begin with `$` (MQTT 5, 4.7.2).
        """
        if topic[0].startswith("$") and self.levels[0] in {"+", "#"}:
            return False
        for index, level in enumerate(self.levels):
            if level == "#":
                return True
            if index >= len(topic) or (level != "+" and level != topic[index]):
                return False
        return len(topic) == len(self.levels)

    def covers(self, other: TopicFilter) -> bool:
        """Return True if the filter matches all topics that `other` matches."""
        for index, level in enumerate(self.levels):
            if level == "#":
                return True
            if index >= len(other.levels) or other.levels[index] == "#" or level not in {"+", other.levels[index]}:
                return False
        return len(self.levels) == len(other.levels)

    def __str__(self) -> str:
        return "/".join(("$share", self.group, *self.levels) if self.group else self.levels)

    def cover(self, other: TopicFilter) -> TopicFilter:
        """Return the smallest filter that matches all topics of both, which overlap."""
        levels = []
        for mine, theirs in zip_longest(self.levels, other.levels, fillvalue="#"):
            levels.append("#" if "#" in {mine, theirs} else mine if mine == theirs else "+")
            if levels[-1] == "#":
                break
        return TopicFilter(tuple(levels), self.group)

    def overlaps(self, other: TopicFilter) -> bool:
        """Return True if some topic matches both. Wildcards do not match a first level that begins with `$`."""
        first, second = self.levels[0], other.levels[0]
        if first != second and "$" in {first[:1], second[:1]}:
            return False
        for mine, theirs in zip(self.levels, other.levels, strict=False):
            if "#" in {mine, theirs}:
                return True
            if mine != theirs and "+" not in {mine, theirs}:
                return False
        longer, length = max(self.levels, other.levels, key=len), min(len(self.levels), len(other.levels))
        return len(longer) == length or longer[length:] == ("#",)


def read_filter(text: str) -> TopicFilter:
    """Parse a topic filter. Raises ValueError with the problem."""
    group, filter_ = "", text
    if text.startswith("$share/"):
        _, group, filter_ = [*text.split("/", 2), "", ""][:3]
        if not group or not filter_ or set(group) & {"+", "#"}:
            raise ValueError("a shared subscription is written $share/<group>/<filter>")
    if not filter_ or "\0" in filter_ or len(text.encode(errors="replace")) > 65_535:
        raise ValueError("a topic filter has 1 to 65535 bytes and no NUL")
    levels = tuple(filter_.split("/"))
    if any("+" in level and level != "+" for level in levels):
        raise ValueError("'+' must stand for a whole level")
    if any("#" in level for level in levels[:-1]) or ("#" in levels[-1] and levels[-1] != "#"):
        raise ValueError("'#' must be the whole last level")
    return TopicFilter(levels, group)


def topics_of(template: str, route: MqttRoute, gateway_id: str, rule: str = "") -> TopicFilter:
    """Return a filter that matches all topics of a template: `+` for levels that hold values of results."""
    known = {"gateway": gateway_id, "route": route.name, "rule": rule}
    parts = read_template(template, RULE_NAMES).parts
    text = "".join(known.get(part, "+") if index % 2 else part for index, part in enumerate(parts))
    return TopicFilter(tuple("+" if "+" in level else level for level in text.split("/")))
