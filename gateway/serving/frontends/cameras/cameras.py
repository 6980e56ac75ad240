"""Cameras of the gateway: a child process for each, requests for its newest frame, and what listens to the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gateway.common.domain.statistics import MetricSample
from gateway.serving.domain.cameras import CameraListener
from gateway.serving.domain.ports import Inference
from gateway.serving.frontends.cameras.feed import CameraFeed
from gateway.serving.frontends.cameras.settings import CameraSettings, ChildLimits

UP = "edge_gateway_camera_up", "Whether frames of a camera arrive."
FRAMES = "edge_gateway_camera_frames_total", "Frames of a camera, by what became of them."
RESTARTS = "edge_gateway_camera_restarts_total", "Processes of a camera that were started again."


class Cameras:
    """Cameras of one daemon. Make it in a running loop; `start` after the models, `stop` before the process ends."""

    def __init__(
        self,
        engine: Inference,
        settings: Sequence[CameraSettings],
        listeners: Iterable[CameraListener] = (),
        limits: ChildLimits | None = None,
    ) -> None:
        self._engine, self._settings, self._limits = engine, tuple(settings), limits or ChildLimits()
        self.listeners = list(listeners)
        self._feeds: dict[str, CameraFeed] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_running = False

    def start(self) -> None:
        """Start a process for each camera."""
        self._is_running = True
        self.follow(self._settings)

    async def stop(self, _grace_s: float = 0.0) -> None:
        """End the processes. They have nothing to finish, and must not outlive an exec of the daemon."""
        self._is_running = False
        for feed in self._feeds.values():
            self._end(feed)
        self._feeds.clear()
        if self._ending:
            await asyncio.wait(self._ending)

    def follow(self, settings: Sequence[CameraSettings]) -> None:
        """Start what is new, start again what has changed, and end what is gone; other cameras go on."""
        self._settings = tuple(settings)
        if not self._is_running:
            return
        wanted = {each.name: each for each in settings}
        for name, feed in list(self._feeds.items()):
            if wanted.get(name) != feed.settings:
                self._end(self._feeds.pop(name))
        new = [each for each in settings if each.name not in self._feeds]
        for index, each in enumerate(new):
            self._feeds[each.name] = feed = CameraFeed(each, self._engine, self.listeners, self._limits)
            feed.start(index * self._limits.start_s, tuple(self._ending))

    def readiness_changed(self) -> None:
        """Ask again for frames whose model was away: other models may answer now."""
        for feed in self._feeds.values():
            feed.want()

    def statuses(self) -> list[dict[str, Any]]:
        """Return a document of each camera, in the order of the configuration."""
        return [self._feeds[each.name].status() for each in self._settings if each.name in self._feeds]

    def samples(self) -> Iterator[MetricSample]:
        """Yield the metrics of cameras."""
        for name, feed in self._feeds.items():
            labels = {"camera": name}
            yield MetricSample(*UP, float(feed.is_streaming), labels, counter=False)
            for what, count in feed.counts().items():
                yield MetricSample(*FRAMES, count, {**labels, "what": what})
            yield MetricSample(*RESTARTS, feed.restarts, labels)

    def _end(self, feed: CameraFeed) -> None:
        ending = asyncio.create_task(feed.stop(), name=f"end of camera {feed.settings.name}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
