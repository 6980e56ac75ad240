"""Metrics of the MQTT frontend's counters (METRICS.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.domain.statistics import MetricSample

GAUGES = frozenset({"connected", "queued", "running", "sensors", "outbox"})
DROPPED = "dropped_"


def samples(counters: Mapping[str, int]) -> Iterator[MetricSample]:
    """Yield one sample per counter of `MqttFrontend.counters()`."""
    for name, value in counters.items():
        if name in GAUGES:
            yield MetricSample("edge_gateway_mqtt_now", "What there is now.", value, {"what": name}, counter=False)
        elif name.startswith(DROPPED):
            reason = {"reason": name.removeprefix(DROPPED)}
            yield MetricSample("edge_gateway_mqtt_drops_total", "Messages that were dropped.", value, reason)
        else:
            yield MetricSample("edge_gateway_mqtt_events_total", "What happened.", value, {"event": name})
