"""Cameras of the gateway: a child process for each, requests for its newest frame, and what listens to the answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gateway.common.domain.statistics import MetricSample
from gateway.serving.domain.cameras import CameraListener
from gateway.serving.domain.ports import InferenceEngine
from gateway.serving.frontends.cameras.settings import CameraSettings
from gateway.serving.frontends.cameras.source import without_secret

STATES = ("connecting", "streaming", "stalled", "lost", "no_model")


class Cameras:
    """Cameras of one daemon. Make it in a running loop."""

    def __init__(
        self, engine: InferenceEngine, settings: Sequence[CameraSettings], listeners: Sequence[CameraListener] = ()
    ) -> None:
        self._engine, self._settings, self.listeners = engine, tuple(settings), list(listeners)

    def start(self) -> None:
        """Start a process for each camera."""

    async def stop(self, grace_s: float) -> None:
        """End the processes."""

    def follow(self, settings: Sequence[CameraSettings]) -> None:
        """Start what is new, start again what has changed, and end what is gone."""

    def readiness_changed(self) -> None:
        """Note that other models may answer now."""

    def statuses(self) -> list[dict[str, Any]]:
        """Return a document of each camera, in the order of the configuration."""
        return [
            {
                "name": each.name,
                "url": without_secret(each.url),
                "model": each.model,
                "state": "connecting",
                "since": 0.0,
                "reason": "",
                "codec": "",
                "width": 0,
                "height": 0,
                "source_per_s": 0.0,
                "asked_per_s": 0.0,
                "answered_per_s": 0.0,
                "counts": dict.fromkeys(("read", "left_out", "skipped", "asked", "answered", "failed"), 0),
                "dropped": {},
                "latency_ms": {"p50": None, "p99": None},
                "rss_bytes": 0,
                "restarts": 0,
            }
            for each in self._settings
        ]

    def samples(self) -> Iterator[MetricSample]:
        """Yield the metrics of cameras."""
        none: Iterable[MetricSample] = ()
        yield from none
