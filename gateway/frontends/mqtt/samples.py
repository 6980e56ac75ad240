"""The frontend's counters as metrics: three names, so that a new reason or event needs no new metric."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.domain.statistics import Sample

GAUGES = frozenset({"connected", "queued", "running", "sensors", "outbox"})
DROPPED = "dropped_"


def samples(counters: Mapping[str, int]) -> list[Sample]:
    """What `MqttFrontend.counters()` says, for the metrics page."""
    return [_sample(name, value) for name, value in sorted(counters.items())]


def _sample(name: str, value: int) -> Sample:
    if name in GAUGES:
        return Sample(
            "edge_gateway_mqtt_now",
            "What there is now: connected (0 or 1), queues, sensors.",
            value,
            {"what": name},
            False,
        )
    if name.startswith(DROPPED):
        reason = {"reason": name.removeprefix(DROPPED)}
        return Sample("edge_gateway_mqtt_drops_total", "MQTT messages that were dropped, by reason.", value, reason)
    return Sample("edge_gateway_mqtt_events_total", "What happened on MQTT, by event.", value, {"event": name})
