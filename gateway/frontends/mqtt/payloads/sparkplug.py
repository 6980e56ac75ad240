"""Sparkplug B as input: births give aliases their names, data uses them. State is bounded, the clock is passed in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.frontends.mqtt.payloads.errors import invalid
from gateway.frontends.mqtt.payloads.sparkplug_message import SparkplugPayload, read_payload, rebirth_command, typed

NAMESPACE = "spBv1.0"
BIRTHS, DATA = frozenset({"NBIRTH", "DBIRTH"}), frozenset({"NDATA", "DDATA"})
NODES_LIMIT = 1_024
"""Edge nodes whose births are remembered; beyond it the least recently born one is forgotten."""
METRICS_LIMIT = 65_536
"""Names and aliases of births that are remembered: about 10 MB. Beyond it the least recently born node is forgotten."""
REBIRTH_REPEAT_S = 10.0
"""Time between two rebirth commands to one edge node."""
NAME_LIMIT_CHARS = 256
"""Longest name of a metric."""
Known = Mapping[int | str, tuple[str, int]]
"""Name and datatype of the metrics of a birth, by alias and by name."""


@dataclass(frozen=True, slots=True)
class SparkplugOrigin:
    """Sender of a message, from its topic `spBv1.0/<group>/<kind>/<node>[/<device>]`; `device` "": the node itself."""

    kind: str
    group: str
    node: str
    device: str = ""


@dataclass(frozen=True, slots=True)
class SparkplugMessage:
    """Message with named metrics. `document` is None for deaths and commands, which carry no rows.

    `known` are the metrics of a birth. `unknown` is an alias that no birth has explained, None: there is none.
    """

    origin: SparkplugOrigin
    document: dict[str, Any] | None = None
    known: Known | None = None
    unknown: int | None = None


class Births:
    """Births of the edge nodes of one route."""

    def __init__(self) -> None:
        self._nodes: OrderedDict[tuple[str, str], dict[str, Known]] = OrderedDict()
        self.held = 0
        """Number of metrics and of their tables that are remembered."""
        self._asked_ns: OrderedDict[tuple[str, str], int] = OrderedDict()

    def read(self, topic: str, payload: bytes) -> SparkplugMessage:
        """Return the message with the names of its metrics; changes nothing. Raises RequestError INVALID."""
        origin = read_topic(topic)
        if origin.kind in BIRTHS:
            parsed = read_payload(payload)
            return _resolved(origin, parsed, known := _born(parsed), known)
        if origin.kind not in DATA:
            return SparkplugMessage(origin)
        known = self._nodes.get((origin.group, origin.node), {}).get(origin.device, {})
        return _resolved(origin, read_payload(payload), known, None)

    def apply(self, read: SparkplugMessage, message: Message) -> OutgoingPublish | None:
        """Remember a birth, or forget a death. Return a rebirth command if the message has an unknown alias."""
        origin = read.origin
        node = (origin.group, origin.node)
        if read.known is not None:
            self._remember(node, origin, read.known)
        elif origin.kind == "NDEATH":
            self._forget(node)
        elif origin.kind == "DDEATH":
            self._forget_device(node, origin.device)
        if read.unknown is None or not self._may_ask(node, message.arrived_ns):
            return None
        topic = f"{NAMESPACE}/{origin.group}/NCMD/{origin.node}"
        return OutgoingPublish(topic, rebirth_command(message.wall_ns // 1_000_000), qos=0)

    def _remember(self, node: tuple[str, str], origin: SparkplugOrigin, known: Known) -> None:
        """Keep a birth. That of a node replaces those of its devices, which follow it (specification 3.0, 6.4.6)."""
        if origin.kind == "NBIRTH":
            self._forget(node)
        self._forget_device(node, origin.device)
        self._nodes.setdefault(node, {})[origin.device] = known
        self._nodes.move_to_end(node)
        self.held += 1 + len(known)
        while len(self._nodes) > 1 and (len(self._nodes) > NODES_LIMIT or self.held > METRICS_LIMIT):
            self._forget(next(iter(self._nodes)))
        if self.held > METRICS_LIMIT:  # one node alone is too large: its births come again, as they are asked for
            self._forget(node)

    def _forget(self, node: tuple[str, str]) -> None:
        tables = self._nodes.pop(node, {})
        self.held -= sum(1 + len(known) for known in tables.values())

    def _forget_device(self, node: tuple[str, str], device: str) -> None:
        known = self._nodes.get(node, {}).pop(device, None)
        self.held -= 0 if known is None else 1 + len(known)

    def _may_ask(self, node: tuple[str, str], now_ns: int) -> bool:
        asked_ns = self._asked_ns.get(node)
        if asked_ns is not None and now_ns - asked_ns < REBIRTH_REPEAT_S * 1e9:
            return False
        self._asked_ns[node] = now_ns
        self._asked_ns.move_to_end(node)
        if len(self._asked_ns) > NODES_LIMIT:
            self._asked_ns.popitem(last=False)
        return True


def command_levels(levels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the filter of the topics of rebirth commands for nodes whose messages match the filter `levels`."""
    known = [level if level != "#" else "+" for level in levels]
    group, _, node = [*known[1:4], "+", "+", "+"][:3]
    return NAMESPACE, group, "NCMD", node


def read_topic(topic: str) -> SparkplugOrigin:
    """Return the sender that a topic names. Raises RequestError INVALID for a topic of another form."""
    namespace, *levels = topic.split("/")
    if namespace != NAMESPACE or not 3 <= len(levels) <= 4:
        raise invalid(f"Sparkplug B takes topics {NAMESPACE}/<group>/<kind>/<node>[/<device>], not {topic:.150}")
    group, kind, *names = levels
    return SparkplugOrigin(kind, group, *names)


def _born(payload: SparkplugPayload) -> Known:
    """Return the metrics that a birth names. Raises RequestError INVALID for names that are unfit."""
    known: dict[int | str, tuple[str, int]] = {}
    for metric in payload.metrics:
        if not 0 < len(metric.name) <= NAME_LIMIT_CHARS:
            raise invalid(f"a metric of a birth has a name of 1 to {NAME_LIMIT_CHARS} characters")
        known[metric.name] = (metric.name, metric.datatype)
        if metric.alias is not None:
            known[metric.alias] = (metric.name, metric.datatype)
    return known


def _resolved(origin: SparkplugOrigin, payload: SparkplugPayload, known: Known, born: Known | None) -> SparkplugMessage:
    metrics: dict[str, Any] = {}
    for metric in payload.metrics:
        name, datatype = known.get(metric.name) or (metric.name, 0)
        if not name:
            if metric.alias not in known:
                return SparkplugMessage(origin, {}, born, metric.alias or 0)
            name, datatype = known[metric.alias or 0]
        metrics[name] = typed(metric.value, metric.datatype or datatype)
    document = {"timestamp": payload.timestamp_ms, "seq": payload.seq, "metrics": metrics}
    return SparkplugMessage(origin, document, born)
