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


def samples(counters: Mapping[str, int], connections: Mapping[str, AcceptedConnection]) -> Iterator[MetricSample]:
    """Yield one sample per counter of `MqttFrontend.counters()`, and those of each connection, by its role."""
    for name, value in counters.items():
        if name in GAUGES:
            yield MetricSample(
                "edge_gateway_mqtt_now",
                NOW,
                value,
                {"what": name},
                counter=False,
            )
        elif name.startswith(DROPPED):
            reason = {"reason": name.removeprefix(DROPPED)}
            yield MetricSample("edge_gateway_mqtt_drops_total", "Messages that were dropped.", value, reason)
        else:
            yield MetricSample("edge_gateway_mqtt_events_total", EVENTS, value, {"event": name})
    for role, accepted in connections.items():
        yield from _connection_samples(role, accepted)


def _connection_samples(role: str, accepted: AcceptedConnection) -> Iterator[MetricSample]:
    labels = {"connection": role, "protocol": accepted.version, "client_id": accepted.client_id}
    yield MetricSample("edge_gateway_mqtt_connection_info", "Connections to the broker.", 1, labels, counter=False)
    for name in LIMITS:
        limit = {"connection": role, "limit": name}
        value = int(getattr(accepted, name))
        yield MetricSample("edge_gateway_mqtt_broker_limit", "Limits of the broker.", value, limit, counter=False)
