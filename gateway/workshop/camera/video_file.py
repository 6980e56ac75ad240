"""Video file of drawn frames, encoded by PyAV."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.tensor import Array

SUFFIXES = (".mp4", ".mkv", ".mov")
CODECS = ("libx264", "mpeg4")
"""Encoders, the better one first: PyAV's own packages have both."""
TICK = Fraction(1, 1000)
STEP_S = 0.04
"""Time to the next frame if the timestamps of the source step back: a camera was connected again."""


class VideoFile:
    """Video file, complete at the end of `with`. Its size is that of the first frame; others are scaled to it.

    Raises ConfigurationError if it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        import av

        self._path, self._last_tick = path, -1
        codec = next(name for name in CODECS if name in av.codecs_available)
        try:
            self._container = av.open(str(path), "w")
        except (av.FFmpegError, OSError, ValueError) as error:
            raise self._failed(error) from None
        self._stream = self._container.add_stream(codec, rate=Fraction(1000), pix_fmt="yuv420p")
        self._stream.codec_context.time_base = TICK
        self._begin_s: float | None = None

    def __enter__(self) -> VideoFile:
        return self

    def __exit__(self, *_: object) -> None:
        import av

        try:
            if self._begin_s is not None:
                self._container.mux(self._stream.encode(None))
            self._container.close()
        except (av.FFmpegError, OSError) as error:
            raise self._failed(error) from None

    def add(self, pixels: Array, timestamp_s: float) -> None:
        """Add a frame, [height, width, 3] in RGB, at its time in the source."""
        import av

        if self._begin_s is None:
            self._begin_s = timestamp_s
            height, width = pixels.shape[:2]
            self._stream.width, self._stream.height = width - width % 2, height - height % 2  # as yuv420p requires
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(
            self._stream.width, self._stream.height, "yuv420p"
        )
        last_s = self._begin_s + self._last_tick * float(TICK)
        if timestamp_s < last_s:
            self._begin_s -= last_s + STEP_S - timestamp_s
        self._last_tick = max(self._last_tick + 1, round((timestamp_s - self._begin_s) / TICK))
        frame.pts, frame.time_base = self._last_tick, TICK
        try:
            self._container.mux(self._stream.encode(frame))
        except (av.FFmpegError, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(f"cannot be written: {error}", file=str(self._path), key="--draw")
