"""Metrics of the MQTT frontend (METRICS.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from gateway.domain.statistics import MetricSample

GAUGES = frozenset({"connected", "queued", "running", "sensors", "outbox", "problems"})
DROPPED = "dropped_"
NOW, EVENTS = "MQTT connections, queues and windows, by kind.", "MQTT messages and link events, by event."
LIMITS = ("receive_maximum", "maximum_packet_bytes", "maximum_qos", "keepalive_s", "retain")
"""Limits of the broker, as its CONNACK says them."""


class AcceptedConnection(Protocol):
    """Content of a CONNACK, as far as it is shown."""

    @property
    def version(self) -> str: ...
    @property
    def client_id(self) -> str: ...


def samples(
    broker: str, counters: Mapping[str, int], connections: Mapping[str, AcceptedConnection]
) -> Iterator[MetricSample]:
    """Yield one sample per counter of `MqttFrontend.counters()`, and those of each connection, by its role.

    `broker`: the broker's name, a label of all of them.
    """
    for name, value in counters.items():
        yield _counter_sample(broker, name, value)
    for role, accepted in connections.items():
        yield from _connection_samples(broker, role, accepted)


def _counter_sample(broker: str, name: str, value: int) -> MetricSample:
    if name in GAUGES:
        return MetricSample("edge_gateway_mqtt_now", NOW, value, {"broker": broker, "what": name}, counter=False)
    if name.startswith(DROPPED):
        labels = {"broker": broker, "reason": name.removeprefix(DROPPED)}
        return MetricSample("edge_gateway_mqtt_drops_total", "Messages that were dropped.", value, labels)
    return MetricSample("edge_gateway_mqtt_events_total", EVENTS, value, {"broker": broker, "event": name})


def _connection_samples(broker: str, role: str, accepted: AcceptedConnection) -> Iterator[MetricSample]:
    common = {"broker": broker, "connection": role}
    labels = {**common, "protocol": accepted.version, "client_id": accepted.client_id}
    yield MetricSample("edge_gateway_mqtt_connection_info", "Connections to the broker.", 1, labels, counter=False)
    for name in LIMITS:
        limit = {**common, "limit": name}
        value = int(getattr(accepted, name))
        yield MetricSample("edge_gateway_mqtt_broker_limit", "Limits of the broker.", value, limit, counter=False)
