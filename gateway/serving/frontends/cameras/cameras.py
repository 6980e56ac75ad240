"""Cameras of the gateway: a child process for each, requests for its newest frame, and what listens to the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gateway.common.domain.statistics import MetricSample
from gateway.serving.domain.cameras import CameraListener
from gateway.serving.domain.ports import Inference
from gateway.serving.frontends.cameras.feed import CameraFeed
from gateway.serving.frontends.cameras.settings import CameraSettings, ChildLimits
from gateway.serving.frontends.cameras.snapshots import Snapshots

TIDY_S = 3_600.0
"""Time between two removals of old pictures."""
UP = "edge_gateway_camera_up", "Whether frames of a camera arrive."
FRAMES = "edge_gateway_camera_frames_total", "Frames of a camera, by what became of them."
RESTARTS = "edge_gateway_camera_restarts_total", "Processes of a camera that were started again."


class Cameras:
    """Cameras of one daemon. Make it in a running loop; `stop` it before the process ends."""

    def __init__(
        self,
        engine: Inference,
        listeners: Iterable[CameraListener] = (),
        limits: ChildLimits | None = None,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.listeners = list(listeners)
        self._engine, self._limits = engine, limits or ChildLimits()
        self._feeds: dict[str, CameraFeed] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._snapshots = snapshots or Snapshots(None)
        self._tidying = asyncio.create_task(self._tidy(), name="pictures of cameras")

    def follow(self, settings: Sequence[CameraSettings]) -> None:
        """Start what is new, start again what has changed (passwords, too), and end what is gone; others go on."""
        if settings:  # at the end of the daemon, no camera's pictures get other bounds
            self._snapshots.follow(settings)
        before, feeds = self._feeds, dict[str, CameraFeed]()
        same = [each for each in settings if each.name in before and before[each.name].settings == each]
        kept = {each.name for each in same if before[each.name].is_current}
        for name, feed in before.items():
            if name not in kept:
                self._end(feed)
        delay_s = 0.0
        for each in settings:
            if each.name in kept:
                feeds[each.name] = before[each.name]
                continue
            feeds[each.name] = CameraFeed(each, self._engine, self.listeners, self._limits, self._snapshots)
            feeds[each.name].start(delay_s, tuple(self._ending))
            delay_s += self._limits.start_s
        self._feeds = feeds

    async def stop(self) -> None:
        """End the processes. They have nothing to finish, and must not outlive an exec of the daemon."""
        self._tidying.cancel()
        self.follow(())
        if self._ending:
            await asyncio.wait(self._ending)

    def readiness_changed(self) -> None:
        """Ask again for frames whose model was away: other models may answer now."""
        for feed in self._feeds.values():
            feed.want()

    def statuses(self) -> list[dict[str, Any]]:
        """Return a document of each camera, in the order of the configuration."""
        return [feed.status() for feed in self._feeds.values()]

    def samples(self) -> Iterator[MetricSample]:
        """Yield the metrics of cameras."""
        for name, feed in self._feeds.items():
            yield from samples(name, feed.counts(), feed.restarts, up=feed.is_streaming)

    async def _tidy(self) -> None:
        """Remove old pictures, also without new ones."""
        first = True
        while True:
            await asyncio.to_thread(self._snapshots.tidy, first=first)
            first = False
            await asyncio.sleep(TIDY_S)

    def _end(self, feed: CameraFeed) -> None:
        ending = asyncio.create_task(feed.stop(), name=f"end of camera {feed.settings.name}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


def samples(camera: str, counts: Mapping[str, int], restarts: int, *, up: bool) -> Iterator[MetricSample]:
    """Yield the metrics of one camera."""
    labels = {"camera": camera}
    yield MetricSample(*UP, float(up), labels, counter=False)
    for what, count in counts.items():
        yield MetricSample(*FRAMES, count, {**labels, "what": what})
    yield MetricSample(*RESTARTS, restarts, labels)
