"""Feed of a video file or a camera to a running gateway: `edge-gateway infer MODEL --video` and `--camera`."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.common.domain.errors import ConfigurationError, Fault, RequestError, UnreachableError
from gateway.common.domain.retry import longest_pause_s
from gateway.common.terminal.program import FINDING, OK
from gateway.serving.cli.common import clean_up_on_signals, warn
from gateway.serving.cli.result_view import documents_of
from gateway.serving.cli.running import disk_meant, find_running
from gateway.serving.cli.waiting import ModelWait
from gateway.serving.frontends.cameras.frames import prepare
from gateway.serving.frontends.cameras.newest import NewestSlot
from gateway.serving.frontends.cameras.reader import DecodedFrame, SourceReader
from gateway.serving.frontends.cameras.reading import ReadingThread, WaitingFrame
from gateway.serving.frontends.cameras.settings import FeedSettings
from gateway.serving.frontends.cameras.source import VideoSource, camera_source, file_source
from gateway.workshop.camera.measures import FrameCounts, FrameTimes, LatencyRecord, RecentRate, summary
from gateway.workshop.cli.frame_feed import FedModel, FrameFeed
from gateway.workshop.cli.infer_options import FASTEST
from gateway.workshop.cli.video_drawing import Drawing, drawing
from gateway.workshop.cli.video_view import Show, live_line, print_line, print_summary, result_of, short_result

if TYPE_CHECKING:
    from av.container import InputContainer

WAITING_HELPS = {Fault.OVERLOADED, Fault.THROTTLED, Fault.UNAVAILABLE}
"""Refusals after which the next frame is sent after a pause."""


def command(arguments: argparse.Namespace) -> int:
    """Feed frames until the source ends, the wished number is reached, or ctrl-c; print results and tables."""
    settings = FeedSettings()
    source = _source(arguments)
    reader = SourceReader(source, settings, warn)
    container = reader.open()
    wait = ModelWait(arguments.model, arguments.wait, arguments.config)
    find = partial(find_running, arguments, unix_first=True)
    found = find() if disk_meant(arguments) else wait.gateway(find)
    if isinstance(found, str):
        raise UnreachableError(
            f"a video needs a gateway that runs, and there is none ({found}); start edge-gateway run (EG-701)"
        )
    clean_up_on_signals()
    with ExitStack() as stack:
        feed = stack.enter_context(FrameFeed(*found, settings, warn))
        model = wait.answer(*found, partial(feed.describe, arguments.model, arguments.model_version))
        if arguments.draw and not model.result:
            problem = f"model '{model.name}' has no task, so that nothing can be drawn"
            raise ConfigurationError(f"{problem}; declare [task] in its manifest (EG-703)", key="--draw")
        drawn = stack.enter_context(drawing(arguments.draw, source.address))
        run = VideoRun(arguments, settings, feed, model, drawn)
        run.feed_all(reader, container, live=source.live)
    return run.finish(str(found[0]))


def _source(arguments: argparse.Namespace) -> VideoSource:
    if arguments.camera is None:
        return file_source(arguments.video)
    if arguments.rate == FASTEST:
        raise ConfigurationError("max goes with --video: a camera has a rate of its own", key="--rate")
    return camera_source(arguments.camera)


class VideoRun:
    """One feed: its loop, results and measures."""

    def __init__(
        self, arguments: argparse.Namespace, settings: FeedSettings, feed: FrameFeed, model: FedModel, drawn: Drawing
    ) -> None:
        self._arguments, self._settings, self._as_json = arguments, settings, arguments.output == "json"
        self._feed, self._model, self._drawn = feed, model, drawn
        self._counts, self._latencies, self._rate = FrameCounts(), LatencyRecord(settings.laps), RecentRate()
        self._begin_s, self._seconds = time.monotonic(), 0.0
        self._asked, self._answered, self._failed, self._failed_in_row = 0, 0, 0, 0
        self._version, self._size = self._model.version, (0, 0)
        self._failure: Exception | None = None

    def feed_all(self, reader: SourceReader, container: InputContainer, *, live: bool) -> None:
        """Send frames until an end. A failure is for `finish`."""
        slot, rate = NewestSlot[WaitingFrame](), self._arguments.rate
        thread = ReadingThread(
            reader.frames(container),
            slot,
            per_s=None if rate == FASTEST else rate,
            pace=not live and rate != FASTEST,
            wait=rate == FASTEST,
        )
        self._begin_s = time.monotonic()
        try:
            with live_line(self._settings, as_json=self._as_json) as show, suppress(KeyboardInterrupt):
                thread.start()
                while self._failure is None and (waiting := self._next(slot)) is not None:
                    self._send(waiting, show)
        finally:
            self._seconds = time.monotonic() - self._begin_s
            thread.stop(self._settings)
        self._failure = self._failure or thread.failure
        counts = (thread.read, thread.left_out, thread.skipped, self._asked, self._answered, self._failed)
        self._counts = FrameCounts(*counts, reader.broken)

    def finish(self, place: str) -> int:
        """Print the summary; return the exit code. Raises what ended the feed, unless that was its own end."""
        document = summary(self._counts, self._seconds, self._latencies)
        where = "in shared memory" if self._feed.in_memory else "in the requests"
        if self._as_json:
            facts = {"model": self._model.name, "version": self._version, "form": str(self._model.form)}
            print_line({"summary": {**facts, "shared_memory": self._feed.in_memory, **document}})
        else:
            name = f"{self._model.name} version {self._version}" if self._version else self._model.name
            print_summary(f"{name} at {place}", f"frames as {self._model.form} {where}", document)
        if self._failure is not None:
            raise self._failure
        if not self._asked:
            warn("the source brought no frame; give it more time, or check it with another player")
        return OK if self._answered else FINDING

    def _next(self, slot: NewestSlot[WaitingFrame]) -> WaitingFrame | None:
        """Return the newest frame; None at the end."""
        if self._asked == self._arguments.frames:
            return None
        left_s = self._left_s()
        return slot.take(left_s) if left_s is None or left_s > 0 else None

    def _left_s(self) -> float | None:
        seconds = self._arguments.seconds
        return None if seconds is None else max(0.0, self._begin_s + seconds - time.monotonic())

    def _send(self, waiting: WaitingFrame, show: Show) -> None:
        """Send one frame, and take its result or failure."""
        frame, taken_s = waiting.frame, time.monotonic()
        self._asked += 1
        self._note_size(frame.image.width, frame.image.height)
        try:
            prepared = prepare(frame.image, self._model.form, self._settings)
            prepared_s = time.monotonic()
            answer = self._feed.ask(self._model, prepared)
        except (RequestError, UnreachableError) as error:
            self._fail(frame, error)
            return
        answered_s = time.monotonic()
        self._answered, self._failed_in_row = self._answered + 1, 0
        wait_s, prepare_s = taken_s - waiting.since_s, prepared_s - taken_s
        times = FrameTimes(frame.decode_s, wait_s, prepare_s, answered_s - prepared_s)
        self._latencies.add(times)
        self._rate.add(answered_s)
        self._version = answer["model_version"]
        whole_ms = times.whole_s * 1000
        show(f"{self._rate.per_s:.1f} per s, {whole_ms:.0f} ms: {short_result(answer)}")
        if self._as_json:
            print_line({**_named(frame), "latency_ms": round(whole_ms, 3), **result_of(answer)})
        if documents := documents_of(answer):
            self._drawn.add(documents[0], prepared.image, frame.timestamp_s)

    def _fail(self, frame: DecodedFrame, error: RequestError | UnreachableError) -> None:
        """Count a frame without an answer. Too many in a row end the feed; if waiting helps, wait."""
        self._failed, self._failed_in_row = self._failed + 1, self._failed_in_row + 1
        if self._as_json:
            print_line({**_named(frame), "error": str(error)})
        if self._failed <= self._settings.reasons_printed:
            warn(f"frame {frame.number}: {error}")
        if self._failed_in_row > self._settings.failed_in_row:
            self._failure = error
        elif isinstance(error, UnreachableError) or error.fault in WAITING_HELPS:
            pause_s = longest_pause_s(self._failed_in_row, self._settings.pause_s, self._settings.pause_limit_s)
            left_s = self._left_s()
            time.sleep(pause_s if left_s is None else min(pause_s, left_s))

    def _note_size(self, width: int, height: int) -> None:
        """Say once for each size if frames are scaled: results are then in pixels of the scaled frame."""
        wanted = self._model.form.size
        if wanted and (width, height) not in {wanted, self._size}:
            warn(
                f"frames of {width} by {height} pixels are scaled to {wanted[0]} by {wanted[1]}, the size that the "
                "model's manifest declares; coordinates in results are those of the scaled frames"
            )
        self._size = (width, height)


def _named(frame: DecodedFrame) -> dict[str, Any]:
    return {"frame": frame.number, "timestamp_s": round(frame.timestamp_s, 6)}
