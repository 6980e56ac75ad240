"""Messages of `edge-gateway watch`: which topics are watched, and what a result, an error and a status say. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timezone
from typing import Any

import msgspec

from gateway.common.domain.python310 import from_iso
from gateway.serving.frontends.mqtt.inbound.payloads.rows import topic_part, topic_range
from gateway.serving.frontends.mqtt.inbound.routing import SENSOR_LIMIT_CHARS, Router
from gateway.serving.frontends.mqtt.messages import Message, Subscription
from gateway.serving.frontends.mqtt.outbound.rows import LISTS
from gateway.serving.frontends.mqtt.settings.route import MqttRoute
from gateway.serving.frontends.mqtt.settings.templates import NAMES, TOPIC_LIMIT_CHARS, read_template, topic_level
from gateway.serving.frontends.mqtt.settings.topic_filters import topics_of

TEXT_LIMIT_CHARS = 200
"""Longest text of a result or an error that is kept."""
ITEMS_SHOWN, LEVELS_SHOWN = 4, 3
"""Items of a list or an object, and nested levels of them, in the text of a result."""
EXACT_INTEGER = 10**15
"""Whole numbers below it are written in full."""


@dataclass(frozen=True, slots=True)
class WatchedResult:
    """Result of a sensor. `ended_s` is the Unix time of its last sample, None if the payload has none."""

    route: str
    sensor: str
    text: str
    label: str | None = None
    score: float | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class WatchedError:
    """Refusal of a message. `sensor` is the topic of the message if that does not name the sensor."""

    route: str
    sensor: str
    text: str


@dataclass(frozen=True, slots=True)
class WatchedStatus:
    """Status of the gateway: online or offline."""

    text: str


WatchedMessage = WatchedResult | WatchedError | WatchedStatus


class WatchedTopics:
    """Topics of a gateway's results, errors and status. `name`: watch one route only; "": all."""

    def __init__(self, routes: Sequence[MqttRoute], gateway_id: str, name: str = "") -> None:
        self._gateway_id, self._name = gateway_id, name
        self._router = Router(routes, gateway_id)
        self._routes = [(_pattern(each, gateway_id), each) for each in routes if name in {"", each.name}]
        self._errors, self._status = f"edge/{gateway_id}/errors", f"edge/{gateway_id}/status"

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Return the subscriptions. No filter matches all topics of another one: a broker may send messages twice."""
        wanted = dict.fromkeys(topics_of(each.result.topic, each, self._gateway_id) for _, each in self._routes)
        least = [one for one in wanted if not any(other.covers(one) for other in wanted if other != one)]
        results = tuple(Subscription(str(topics), 0) for topics in least)
        return (*results, Subscription(self._errors, 0), Subscription(self._status, 0, retained=True))

    def read(self, message: Message) -> WatchedMessage | None:
        """Return what a message says; None if it is not watched, or is an old one that the broker retained."""
        if message.topic == self._status:
            return WatchedStatus(_text_of(message.payload))
        if message.retain or len(message.topic) > TOPIC_LIMIT_CHARS:
            return None
        if message.topic == self._errors:
            return self._error(message)
        found = [(each, match) for pattern, each in self._routes if (match := pattern.fullmatch(message.topic))]
        if not found:
            return None
        route, match = found[0]
        names = " or ".join(dict.fromkeys(each.name for each, _ in found))
        return _result(route, names, match.groupdict().get("sensor") or "", message)

    def _error(self, message: Message) -> WatchedError | None:
        refusal = _document(message.payload)
        if not isinstance(refusal, dict):
            return WatchedError("", message.topic, _text_of(message.payload)) if not self._name else None
        topic = str(refusal.get("topic", ""))[:TOPIC_LIMIT_CHARS]
        routes = self._router.routes(topic) if topic else ()
        names = [route.name for route in routes]
        if self._name and self._name not in names:
            return None
        text = _short(f"{refusal.get('fault', '')}: {refusal.get('message', '')}")
        sensor = _sensor_of(routes[0] if routes else None, topic)
        return WatchedError(" or ".join(names), sensor or topic or "-", text)


def _pattern(route: MqttRoute, gateway_id: str) -> re.Pattern[str]:
    """Return the pattern of a route's result topics, with the group `sensor` if they name it."""
    known = {"gateway": re.escape(topic_level(gateway_id)), "route": re.escape(topic_level(route.name))}
    text, placeholders = "", dict(known)
    for index, part in enumerate(read_template(route.result.topic, NAMES).parts):
        if index % 2 and part == "sensor":
            text += "(?P=sensor)" if "(?P<sensor>" in text else "(?P<sensor>[^/]+)"
        else:
            text += placeholders.get(part, "[^/]*") if index % 2 else re.escape(part)
    return re.compile(text)


def _has_sensor(route: MqttRoute) -> bool:
    """Return True if the payloads of the route's results name the sensor."""
    return route.result.payload == "json" and not route.result.template


def _sensor_of(route: MqttRoute | None, topic: str) -> str:
    """Return the sensor of a refused message as results name it; "" if its topic does not name it."""
    if route is None:
        return ""
    if route.sensor == "topic":
        name = topic
    elif route.sensor.startswith("topic["):
        name = topic_part(topic, topic_range(route.sensor))
    else:
        return ""
    return name if _has_sensor(route) else topic_level(name)


def _result(route: MqttRoute, names: str, sensor: str, message: Message) -> WatchedResult:
    content = _document(message.payload)
    first, ended_s = _first(content), None
    if isinstance(content, dict) and _has_sensor(route) and isinstance(content.get("sensor"), str):
        sensor = content["sensor"][:SENSOR_LIMIT_CHARS] or sensor
    if isinstance(first, dict):
        text = describe(content)
        ended_s = _seconds(content.get("ended_at") if isinstance(content, dict) else first.get("ended_at"))
    else:
        text, first = _text_of(message.payload), {}
    best = next(iter(_parts(first) or ()), first)
    label, score = best.get("label"), best.get("score", best.get("share"))
    return WatchedResult(
        names,
        sensor or message.topic,
        text,
        _short(label) if isinstance(label, str) else None,
        _finite(score),
        ended_s,
    )


def describe(content: Any) -> str:
    """Return a result's JSON as a short text: label and score, or values, or outputs; else the JSON."""
    rows = content.get("results") if isinstance(content, dict) else content
    if isinstance(rows, list) and rows and isinstance(rows[0], dict):
        more = f" (+{len(rows) - 1} rows)" if len(rows) > 1 else ""
        return _short(_row(rows[0])[: TEXT_LIMIT_CHARS - len(more)] + more)
    return _short(_row(content))


def _row(row: Any) -> str:
    if not isinstance(row, dict):
        return _item(row)
    if (parts := _parts(row)) is not None:
        more = f" (+{len(parts) - 1})" if len(parts) > 1 else ""
        return (_row(parts[0]) if parts else "nothing") + more
    score = row.get("score", row.get("share"))
    if "anomalous" in row:
        return f"{'anomalous' if row['anomalous'] else 'normal'} {_item(score)}"
    if "label" in row:
        return f"{_item(row['label'])} {_item(score)}" if score is not None else _item(row["label"])
    if isinstance(row.get("text"), str):
        return _item(row["text"])
    if isinstance(row.get("values"), Mapping):
        return _items(f"{name}={_item(value)}" for name, value in row["values"].items())
    if isinstance(row.get("outputs"), list) and all(isinstance(each, dict) for each in row["outputs"]):
        return _items(f"{each.get('name', '')}={_item(each.get('data'))}" for each in row["outputs"])
    return _item(row["value"]) if "value" in row else _item(row)


def _parts(row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the detections or classes of a result, best first; None if it has no such list."""
    found = next((row[key] for key in LISTS if isinstance(row.get(key), list)), None)
    return found if found is not None and all(isinstance(each, dict) and "label" in each for each in found) else None


def _items(texts: Any) -> str:
    """Return the first texts of an iterator."""
    found = [text for _, text in zip(range(ITEMS_SHOWN + 1), texts, strict=False)]
    return " ".join([*found[:ITEMS_SHOWN], *(["…"] if len(found) > ITEMS_SHOWN else [])])


def _item(value: Any, levels: int = LEVELS_SHOWN) -> str:
    """Return a value as a short text. Lists and objects below `levels` are left out."""
    match value:
        case None | True | False:
            return {None: "null", True: "true", False: "false"}[value]
        case str():
            return value[:TEXT_LIMIT_CHARS]
        case int() if -EXACT_INTEGER < value < EXACT_INTEGER:
            return str(value)
        case int() | float():
            return _number(value)
        case _ if levels == 0:
            return "…"
        case [one]:
            return _item(one, levels - 1)
        case list():
            return f"[{_items(_item(each, levels - 1) for each in value)}]"
        case _:
            pairs = (f"{name[:TEXT_LIMIT_CHARS]}: {_item(each, levels - 1)}" for name, each in value.items())
            return f"{{{_items(pairs)}}}"


def _number(value: float) -> str:
    try:
        return f"{float(value):.4g}"
    except OverflowError:
        return "∞"


def _finite(value: Any) -> float | None:
    """Return a number as a float; None if it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _first(content: Any) -> Any:
    """Return the first row of a result."""
    rows = content.get("results") if isinstance(content, dict) else content
    return rows[0] if isinstance(rows, list) and rows else content


def _document(payload: bytes) -> Any:
    """Return a payload's JSON; None if it is none."""
    try:
        return msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        return None


def _text_of(payload: bytes) -> str:
    return _short(payload[: 4 * TEXT_LIMIT_CHARS].decode("utf-8", "replace"))


def _short(text: str) -> str:
    """Return a text on one line, with at most TEXT_LIMIT_CHARS characters."""
    line = " ".join(text.split())
    return line if len(line) <= TEXT_LIMIT_CHARS else f"{line[: TEXT_LIMIT_CHARS - 1]}…"


def _seconds(moment: Any) -> float | None:
    """Return the Unix time of an ISO 8601 text; without an offset it is UTC. None if it is none."""
    if not isinstance(moment, str):
        return None
    try:
        read = from_iso(moment)
        return (read if read.tzinfo else read.replace(tzinfo=timezone.utc)).timestamp()
    except (ValueError, OverflowError):
        return None
