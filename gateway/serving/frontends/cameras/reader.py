"""Frames of a source, decoded by PyAV. A camera that is lost is connected again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.domain.retry import longest_pause_s
from gateway.serving.frontends.cameras.settings import FeedSettings
from gateway.serving.frontends.cameras.source import VideoSource, without_secret

if TYPE_CHECKING:
    import av
    from av.container import InputContainer


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """Frame of a source. `number`: from 0 on. `timestamp_s`: the stream's own. `decode_s`: time of its decoding."""

    number: int
    timestamp_s: float
    image: av.VideoFrame
    decode_s: float


class LoginRefusedError(UnreachableError):
    """Refusal of the user or the password by a camera. Some lock a user after a few of them."""


class SourceReader:
    """Reader of one source. `broken`: packets that could not be decoded. `pause` waits for a number of seconds.

    `tell` is called with a line for the user when a camera is lost and found again.
    """

    def __init__(
        self,
        source: VideoSource,
        settings: FeedSettings,
        tell: Callable[[str], None],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.broken = 0
        self._source, self._settings, self._tell, self._pause = source, settings, tell, pause
        self._count, self._broken_in_row, self._lost = 0, 0, 0

    def open(self) -> InputContainer:
        """Open the source. Raises ConfigurationError for a file without video, UnreachableError for a camera.

        Raises LoginRefusedError where a camera refuses user or password.
        """
        import av

        try:
            return self._open()
        except av.ArgumentError:  # what FFmpeg says of a demuxer that is not allowed
            allowed = self._source.options.get("format_whitelist", self._source.format).replace(",", ", ")
            reason = f"it is no video of an allowed format ({allowed})"
        except (av.HTTPUnauthorizedError, av.HTTPForbiddenError) as error:  # FFmpeg's for RTSP, too
            remedy = "write another user or password, before the camera locks the user (EG-705)"
            raise LoginRefusedError(f"cannot be read: {reason_of(error)}; {remedy}", file=str(self._source)) from None
        except (av.FFmpegError, OSError, ValueError) as error:
            reason = reason_of(error)
        if self._source.live:
            remedy = "check the address, and that no other program uses the camera (EG-704)"
            if file := self._source.options.get("ca_file"):
                remedy = f"check the address, and that {file} can be read and has the camera's certificate (EG-704)"
            raise UnreachableError(f"cannot be read: {reason}; {remedy}", file=str(self._source))
        remedy = "give a file that holds the video itself, such as MP4, Matroska, AVI, MPEG-TS or OGG"
        raise ConfigurationError(f"cannot be read as a video: {reason}; {remedy}", file=str(self._source))

    def frames(self, container: InputContainer) -> Iterator[DecodedFrame]:
        """Yield the frames of an opened source, and of a camera that was connected again.

        Raises as `open` does once a file is damaged, or the attempts to connect a camera are used up.
        """
        import av

        while True:
            reason = "the stream ended"
            try:
                yield from self.decoded(container)
            except (av.FFmpegError, OSError) as error:
                reason = reason_of(error)
                if not self._source.live:
                    problem = f"is damaged after {self._count} frames: {reason}"
                    raise ConfigurationError(problem, file=str(self._source)) from None
            finally:
                container.close()
            if not self._source.live:
                return
            container = self._again(reason)

    def decoded(self, container: InputContainer) -> Iterator[DecodedFrame]:
        """Yield the frames until the stream ends. Raises PyAV's errors of the container."""
        import av

        stream = container.streams.video[0]
        rate = float(stream.average_rate or stream.base_rate or 1)
        for packet in container.demux(stream):
            begin_s = time.monotonic()
            try:
                images = packet.decode()
            except av.InvalidDataError as error:
                self._count_broken(error)
                continue
            for image in images:
                timestamp_s = self._count / rate if image.time is None else image.time
                yield DecodedFrame(self._count, timestamp_s, image, time.monotonic() - begin_s)
                self._count, self._broken_in_row, self._lost = self._count + 1, 0, 0
                begin_s = time.monotonic()

    def _count_broken(self, error: Exception) -> None:
        self.broken, self._broken_in_row = self.broken + 1, self._broken_in_row + 1
        if self._broken_in_row > self._settings.broken_in_row:
            raise error

    def _open(self) -> InputContainer:
        """Open the source. Raises PyAV's errors, OSError, and ValueError if there is no video in it."""
        import av

        source, settings = self._source, self._settings
        timeout_s = (settings.open_s, settings.read_s) if source.live else None
        container = av.open(
            source.address, format=source.format or None, options=dict(source.options), timeout=timeout_s
        )
        if not container.streams.video:
            container.close()
            raise ValueError("there is no video in it")
        return container

    def _again(self, reason: str) -> InputContainer:
        """Connect a camera again. Raises UnreachableError after the last of a number of attempts in a row."""
        import av

        settings, source = self._settings, self._source
        self._tell(f"{source} was lost: {reason}")
        while self._lost < settings.reconnections:
            self._lost += 1
            self._pause(longest_pause_s(self._lost, settings.pause_s, settings.pause_limit_s))
            try:
                container = self._open()
            except (av.FFmpegError, OSError, ValueError) as error:
                reason = reason_of(error)
                self._tell(f"attempt {self._lost} of {settings.reconnections} to connect it again failed: {reason}")
            else:
                self._tell("it is connected again")
                return container
        problem = f"was lost, and {settings.reconnections} attempts in a row to connect it again failed: {reason}"
        raise UnreachableError(f"{problem}; check the camera and its network", file=str(source))


def reason_of(error: Exception) -> str:
    """Return what is wrong, without names and passwords."""
    if type(error).__name__ == "ExitError":  # a time limit of PyAV
        return "nothing came within the time limit"
    return without_secret(str(getattr(error, "strerror", None) or error) or type(error).__name__)
