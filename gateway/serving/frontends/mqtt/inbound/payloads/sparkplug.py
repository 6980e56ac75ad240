"""Sparkplug B as input: births give aliases their names, data uses them. State is bounded, the clock is passed in.

States of an edge node, and of its devices with DBIRTH and DDEATH. A message that asks for a rebirth does so at most
every REBIRTH_REPEAT_S.

| state | NBIRTH | NDEATH of its session | NDEATH of another session | DBIRTH, data |
| --- | --- | --- | --- | --- |
| not known | alive | dead | dead | taken; an alias without a name is refused and asks for a rebirth |
| alive | alive | dead | ignored, asks for a rebirth | taken; a gap in the sequence asks for a rebirth |
| dead | alive | dead | dead | refused, asks for a rebirth |
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from gateway.common.domain.errors import RequestError
from gateway.serving.frontends.mqtt.inbound.payloads.content import invalid
from gateway.serving.frontends.mqtt.inbound.payloads.sparkplug_message import (
    SparkplugPayload,
    read_payload,
    rebirth_command,
    typed,
)
from gateway.serving.frontends.mqtt.messages import Message, OutgoingPublish
from gateway.serving.frontends.mqtt.settings.presets import NAMESPACE

BIRTHS, DATA, DEATHS = frozenset({"NBIRTH", "DBIRTH"}), frozenset({"NDATA", "DDATA"}), frozenset({"NDEATH", "DDEATH"})
SESSION, TIMESTAMP = "bdSeq", "timestamp"
"""Metric with the number of a node's session; key of a row's time in ms, unless a metric is called so."""
SEQUENCE_MODULUS = 256
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
NodeKey = tuple[str, str]
"""Group and name of an edge node."""


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
    `historical` are documents of stored metrics, one for each time. `seq` and `session` (bdSeq) are None if not stated.
    """

    origin: SparkplugOrigin
    document: dict[str, Any] | None = None
    known: Known | None = None
    unknown: int | None = None
    historical: Sequence[dict[str, Any]] = ()
    seq: int | None = None
    session: int | None = None


@dataclass(slots=True)
class EdgeNode:
    """State of an edge node: the births of the node ("") and its devices (None: the device is dead).

    `seq` is the sequence number of the last message, `session` the bdSeq of the last birth; None: not known.
    """

    is_alive: bool = True
    births: dict[str, Known | None] = field(default_factory=dict)
    seq: int | None = None
    session: int | None = None


class Births:
    """Births of the edge nodes of one route. `gets_all`: the route gets all messages of a node: gaps count."""

    def __init__(self, *, gets_all: bool = True) -> None:
        self._gets_all = gets_all
        self._nodes: OrderedDict[NodeKey, EdgeNode] = OrderedDict()
        self.held = 0
        """Number of metrics and of their tables that are remembered."""
        self._asked_ns: OrderedDict[NodeKey, int] = OrderedDict()

    def read(self, topic: str, payload: bytes) -> SparkplugMessage:
        """Return the message with the names of its metrics; changes nothing. Raises RequestError INVALID."""
        origin = read_topic(topic)
        if origin.kind in BIRTHS:
            parsed = read_payload(payload)
            return _resolved(origin, parsed, known := _born(parsed), known)
        if origin.kind in DEATHS:
            with suppress(RequestError):  # a death that cannot be read counts, too
                parsed = read_payload(payload)
                return SparkplugMessage(origin, seq=parsed.seq, session=_session(parsed))
        if origin.kind not in DATA:
            return SparkplugMessage(origin)
        node = self._nodes.get((origin.group, origin.node)) or EdgeNode()
        return _resolved(origin, read_payload(payload), node.births.get(origin.device) or {}, None)

    def apply(self, read: SparkplugMessage, message: Message) -> tuple[str, OutgoingPublish | None]:
        """Change the state of a message's node (table above).

        Return the problem of a message that is refused ("": it is taken), and the rebirth command to publish, if any.
        """
        origin, key = read.origin, (read.origin.group, read.origin.node)
        problem, asks = "", False
        if origin.kind == "NBIRTH":
            self._forget(key)
            self._remember(key, EdgeNode(seq=read.seq or 0, session=read.session), origin, read.known or {})
        elif origin.kind == "NDEATH":
            node = self._nodes.get(key)
            known = node.session if node is not None and node.is_alive else None
            asks = read.session != known and None not in {read.session, known}
            if not asks:
                self._forget(key)
                self._keep(key, EdgeNode(is_alive=False))
        elif origin.kind in BIRTHS | DATA | DEATHS:
            problem, asks = self._follow(key, self._nodes.get(key), read)
        if not asks or not self._may_ask(key, message.arrived_ns):
            return problem, None
        topic = f"{NAMESPACE}/{origin.group}/NCMD/{origin.node}"
        return problem, OutgoingPublish(topic, rebirth_command(message.wall_ns // 1_000_000), qos=0)

    def _follow(self, key: NodeKey, node: EdgeNode | None, read: SparkplugMessage) -> tuple[str, bool]:
        """Apply a message that a node sends after its birth. Return its problem, and whether to ask for a rebirth."""
        device, known = read.origin.device, node.births if node else {}
        if node is not None and not node.is_alive:
            return f"Sparkplug node '{key[1]:.80}' sent data after its NDEATH", True
        has_gap = False
        if node is not None and read.seq is not None:
            has_gap = self._gets_all and node.seq is not None and read.seq != (node.seq + 1) % SEQUENCE_MODULUS
            node.seq = read.seq
        if read.known is not None:
            self._remember(key, node or EdgeNode(seq=read.seq), read.origin, read.known)
        elif read.origin.kind in DEATHS and device in known:
            self.held -= len(known[device] or ())
            known[device] = None
        elif read.origin.kind in DATA and known.get(device, {}) is None:
            return f"Sparkplug device '{device:.80}' sent data after its DDEATH", True
        elif read.unknown is not None:
            return f"no birth explains metric alias {read.unknown}", True
        return "", has_gap

    def _remember(self, key: NodeKey, node: EdgeNode, origin: SparkplugOrigin, known: Known) -> None:
        """Keep a birth. That of a node replaces those of its devices, which follow it (specification 3.0, 6.4.6)."""
        if origin.device in node.births:
            self.held -= 1 + len(node.births[origin.device] or ())
        node.births[origin.device] = known
        self.held += 1 + len(known)
        self._keep(key, node)

    def _keep(self, key: NodeKey, node: EdgeNode) -> None:
        self._nodes[key] = node
        self._nodes.move_to_end(key)
        while len(self._nodes) > 1 and (len(self._nodes) > NODES_LIMIT or self.held > METRICS_LIMIT):
            self._forget(next(iter(self._nodes)))
        if self.held > METRICS_LIMIT:  # one node alone is too large: its births come again, as they are asked for
            self._forget(key)

    def _forget(self, key: NodeKey) -> None:
        node = self._nodes.pop(key, None)
        self.held -= sum(1 + len(known or ()) for known in node.births.values()) if node else 0

    def _may_ask(self, node: NodeKey, now_ns: int) -> bool:
        asked_ns = self._asked_ns.get(node)
        if asked_ns is not None and now_ns - asked_ns < REBIRTH_REPEAT_S * 1e9:
            return False
        self._asked_ns[node] = now_ns
        self._asked_ns.move_to_end(node)
        if len(self._asked_ns) > NODES_LIMIT:
            self._asked_ns.popitem(last=False)
        return True


def gets_all(filters: Sequence[str]) -> bool:
    """Return True if one of the filters of a route matches all messages of each node that it matches.

    A shared subscription gets a part of them.
    """
    split = [filter_.split("/") for filter_ in filters if filter_.endswith("#") and not filter_.startswith("$share/")]
    return any(len(levels) <= 5 and set(levels[2:3]) <= {"+", "#"} for levels in split)


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


def _session(payload: SparkplugPayload) -> int | None:
    """Return bdSeq. Of several the last one counts: clients that send one list of metrics again append to it."""
    found = (metric.value for metric in reversed(payload.metrics) if metric.name == SESSION)
    return next((value for value in found if type(value) is int), None)


def _resolved(origin: SparkplugOrigin, payload: SparkplugPayload, known: Known, born: Known | None) -> SparkplugMessage:
    rows: dict[int | None, dict[str, Any]] = {None: {}}
    """Metrics by the time of stored ones; None: the current ones."""
    for metric in payload.metrics:
        name, datatype = known.get(metric.name) or (metric.name, 0)
        if not name:
            if metric.alias not in known:
                return SparkplugMessage(origin, {}, born, metric.alias or 0, seq=payload.seq)
            name, datatype = known[metric.alias or 0]
        if metric.is_historical and metric.timestamp_ms is None:
            continue
        row = rows.setdefault(metric.timestamp_ms if metric.is_historical else None, {})
        row[name] = typed(metric.value, metric.datatype or datatype)
    current = _document(rows.pop(None), payload.timestamp_ms, payload.seq)
    historical = [_document(rows[time], time, payload.seq) for time in sorted(rows, key=lambda ms: ms or 0)]
    session = None if born is None else _session(payload)
    return SparkplugMessage(origin, current, born, None, historical, payload.seq, session)


def _document(metrics: dict[str, Any], timestamp_ms: int | None, seq: int | None) -> dict[str, Any]:
    """Return a document whose row also has the time of its values."""
    row = metrics if timestamp_ms is None else {TIMESTAMP: timestamp_ms, **metrics}
    return {"timestamp": timestamp_ms, "seq": seq, "metrics": row}
