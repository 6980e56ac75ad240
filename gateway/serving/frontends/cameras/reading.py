"""Thread that reads a source and keeps its newest frame ready."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from gateway.serving.frontends.cameras.newest import NewestSlot
from gateway.serving.frontends.cameras.pacing import PlaybackClock, RateLimit
from gateway.serving.frontends.cameras.reader import DecodedFrame
from gateway.serving.frontends.cameras.settings import FeedSettings


class WaitingFrame:
    """Frame in the slot. `since_s`: when it was put there, on the monotonic clock."""

    __slots__ = ("frame", "since_s")

    def __init__(self, frame: DecodedFrame) -> None:
        self.frame, self.since_s = frame, time.monotonic()


class ReadingThread(threading.Thread):
    """Thread that offers frames to a slot, at most `per_s` of them per second.

    `pace`: play a file by its timestamps. `wait`: offer a frame only when the one before it was taken; else the newest
    frame wins. `read`, `left_out` (by the rate) and `skipped` (a newer one came first) count frames. `failure`: why it
    ended, None at the end of the frames.
    """

    def __init__(
        self,
        frames: Iterable[DecodedFrame],
        slot: NewestSlot[WaitingFrame],
        *,
        per_s: float | None = None,
        pace: bool = False,
        wait: bool = False,
    ) -> None:
        super().__init__(name="camera", daemon=True)
        self.read = self.left_out = self.skipped = 0
        self.failure: Exception | None = None
        self._frames, self._slot, self._limit = frames, slot, RateLimit(per_s)
        self._clock, self._wait, self._stopped = PlaybackClock() if pace else None, wait, threading.Event()

    def run(self) -> None:
        """Read until the frames end, or `stop`."""
        try:
            for frame in self._frames:
                self._offer(frame)
                if self._stopped.is_set():
                    return
        except Exception as error:  # noqa: BLE001  the thread that asks raises it
            self.failure = error
        finally:
            self._slot.close()

    def stop(self, settings: FeedSettings) -> None:
        """End the thread. One that is blocked by its camera is left behind: it is a daemon."""
        self._stopped.set()
        self._slot.close()
        self.join(settings.stop_s)

    def _offer(self, frame: DecodedFrame) -> None:
        self.read += 1
        due_s = time.monotonic()
        if self._clock is not None:
            due_s = self._clock.due_s(frame.timestamp_s, due_s)
            self._stopped.wait(due_s - time.monotonic())
        if not self._limit.admits(due_s):
            self.left_out += 1
            return
        if self._wait:
            self._slot.wait_empty()
        self.skipped += self._slot.offer(WaitingFrame(frame))
