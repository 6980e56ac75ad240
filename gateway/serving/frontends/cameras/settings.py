"""Settings of cameras: each `[[camera]]`, and limits of feeds of frames. They are checked when they are built."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.cameras.source import VideoSource, camera_source, file_source

MAX_CAMERAS = 64
CAMERA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
RATE_LIMIT = 1_000.0
MASKS_LIMIT = 32
"""Most masks of one camera."""
CORNERS_LIMIT = 64
Corner = tuple[float, float]
"""Most corners of one mask."""


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """`[camera.snapshot]`: pictures of events."""

    labels: tuple[str, ...] = ()  # labels of the task's result that make a picture; (): each one
    min_score: float = 0.5  # least score of such a result
    every_s: float = 10.0  # least time between two pictures
    max_bytes: int = 268_435_456  # pictures of this camera on the disk; the oldest ones are removed
    max_age_s: float = 604_800.0  # age at which a picture is removed
    boxes: bool = True  # draw boxes and labels

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table camera.snapshot)."""
        for key, wrong, rule in (
            ("min_score", not 0.0 <= self.min_score <= 1.0, "0 to 1"),
            ("every_s", not 0.1 <= self.every_s <= 86_400.0, "0.1 to 86400 seconds"),
            ("max_bytes", self.max_bytes < 1_048_576, "1048576 or more"),
            ("max_age_s", self.max_age_s < 60.0, "60 seconds or more"),
        ):
            if wrong:
                problem = f"must be {rule}, not {getattr(self, key)!r:.80}"
                raise ConfigurationError(problem, table="camera.snapshot", key=key)


@dataclass(frozen=True, slots=True)
class CameraSettings:
    """Settings of one `[[camera]]`: a source of frames, and the model that is asked for each of them."""

    name: str
    """Name in results, topics, metrics and folders."""
    url: str
    """URL of the camera, a device such as /dev/video0, or the path of a file, which is played again and again."""
    model: str
    """Model or pipeline that is asked; it may be loaded later."""
    version: str = ""
    """The model's version; empty: the one that is served."""
    credential: str = ""
    """File whose first line is USER:PASSWORD, or `credential:NAME` (files/credentials.py); empty: none."""
    ca: str = ""
    """File of certificates (PEM) that the camera's must be one of, or be signed by; empty: it is not verified."""
    per_s: float = 5.0
    """Most frames a second that the model is asked for."""
    masks: tuple[tuple[float, ...], ...] = ()
    """Polygons, each x, y, x, y, … in shares of the picture, that are black in every frame and picture."""
    snapshot: SnapshotSettings | None = None
    """Pictures of events; None: none are kept."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table camera[NAME])."""
        if not CAMERA_NAME.fullmatch(self.name):
            problem = "must be 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit, not "
            raise ConfigurationError(f"{problem}{self.name!r:.150}", table="camera", key="name")
        try:
            source = self.source
        except ConfigurationError as error:
            raise ConfigurationError(error.problem, table=self.table, key="url") from None
        has_user = source.address.startswith(AUTHENTICATED)
        named = "@" in urlsplit(source.address).netloc
        for key, wrong, rule in (
            ("model", not self.model, "the name of a model or pipeline"),
            ("credential", bool(self.credential) and not has_user, "empty: only rtsp and http have users"),
            ("credential", bool(self.credential) and named, "empty, or the url without user and password"),
            ("ca", bool(self.ca) and not source.address.startswith(ENCRYPTED), "empty: only rtsps and https have it"),
            ("per_s", not 0.01 <= self.per_s <= RATE_LIMIT, f"0.01 to {RATE_LIMIT:g} frames a second"),
            ("masks", not _are_polygons(self.masks), MASKS_RULE),
            ("masks", any(map(_crosses_itself, self.masks)), CROSSING_RULE),
        ):
            if wrong:
                problem = f"must be {rule}, not {getattr(self, key)!r:.80}"
                raise ConfigurationError(problem, table=self.table, key=key)

    @property
    def table(self) -> str:
        """Return the table's name in error messages."""
        return f"camera[{self.name}]"

    @property
    def source(self) -> VideoSource:
        """Return what the camera's frames are read from. Raises ConfigurationError."""
        return (
            file_source(self.url) if is_file(self.url) else camera_source(self.url, "a file is named by its whole path")
        )

    @property
    def shown_url(self) -> str:
        """Return the URL without user and password, wherever they are in it."""
        return str(self.source)

    @property
    def has_secret(self) -> bool:
        """Return True if the URL has a user or a password in it, also as a parameter or a part of its path."""
        return self.source.live and self.shown_url != self.url


@dataclass(frozen=True, slots=True)
class ChildLimits:
    """Limits of a camera's process, and of what the daemon takes from it."""

    memory_bytes: int = 1_073_741_824  # data of the process (RLIMIT_DATA): frames of 8K take most of it
    files: int = 64  # descriptors of the process
    nice: int = 10  # added to its nice value, so that what is being served goes first
    alive_s: float = 1.0  # between two reports
    silent_s: float = 15.0  # without a report; then the process is killed and started again
    open_s: float = 10.0  # for a camera to be connected
    read_s: float = 10.0  # for its next packet; then the stream is stalled, and opened again
    hang_s: float = 30.0  # without a decoded frame while connected; then the process ends itself
    pause_s: float = 1.0  # before a camera is connected again, or its process started; doubled with each failure
    pause_limit_s: float = 60.0  # longest of these pauses
    stable_s: float = 60.0  # of a process, after which its failures are forgotten
    end_s: float = 5.0  # for a killed process to end
    start_s: float = 0.1  # between the starts of two processes
    request_s: float = 5.0  # for a frame to begin to run; then it is dropped
    picture_bytes: int = 33_554_432  # largest picture
    unasked: float = 20.0  # reports a second that no order asked for, on average


AUTHENTICATED = ("rtsp", "http")
"""Beginnings of URLs with a user name and a password."""
ENCRYPTED = ("rtsps:", "https:")
"""Beginnings of URLs whose peer has a certificate."""
MASKS_RULE = (
    f"at most {MASKS_LIMIT} polygons, each an array of 3 to {CORNERS_LIMIT} pairs x, y in shares of the picture, 0 to 1"
)

CROSSING_RULE = (
    "polygons whose edges neither cross nor touch, for parts would stay visible: write the corners of each in their "
    "order around it, and two areas as two polygons"
)


def is_file(url: str) -> bool:
    """Return True if a camera is a file: an absolute path that is no device."""
    return url.startswith("/") and not url.startswith("/dev/")


def check_cameras(cameras: Sequence[CameraSettings]) -> None:
    """Refuse names that occur twice, and too many cameras. Raises ConfigurationError."""
    names = set[str]()
    for camera in cameras:
        if camera.name in names:
            raise ConfigurationError(
                f"two cameras are called {camera.name!r}; names must differ", table=camera.table, key="name"
            )
        names.add(camera.name)
    if len(names) > MAX_CAMERAS:
        raise ConfigurationError(f"there are {len(names)} cameras; at most {MAX_CAMERAS} are served", table="camera")


def _are_polygons(masks: tuple[tuple[float, ...], ...]) -> bool:
    return len(masks) <= MASKS_LIMIT and all(
        6 <= len(mask) <= 2 * CORNERS_LIMIT
        and len(mask) % 2 == 0
        and all(math.isfinite(each) and 0.0 <= each <= 1.0 for each in mask)
        for mask in masks
    )


def _crosses_itself(mask: tuple[float, ...]) -> bool:
    """Return True if edges of a polygon that are no neighbours cross or touch."""
    corners = list(zip(mask[::2], mask[1::2], strict=False))
    corners = [corner for before, corner in zip(corners[-1:] + corners, corners, strict=False) if corner != before]
    edges = list(zip(corners, corners[1:] + corners[:1], strict=True))
    return any(
        _meet(*edges[first], *edges[second])
        for second in range(2, len(edges))
        for first in range(second - 1)
        if (first, second) != (0, len(edges) - 1)
    )


def _meet(a: Corner, b: Corner, c: Corner, d: Corner) -> bool:
    """Return True if the edges a b and c d cross or touch."""
    boxes = all(min(a[i], b[i]) <= max(c[i], d[i]) and min(c[i], d[i]) <= max(a[i], b[i]) for i in (0, 1))
    return boxes and _side(a, b, c) * _side(a, b, d) <= 0.0 and _side(c, d, a) * _side(c, d, b) <= 0.0


def _side(a: Corner, b: Corner, point: Corner) -> float:
    """Return on which side of the line a b a point lies, by its sign; 0: on it."""
    return (b[0] - a[0]) * (point[1] - a[1]) - (b[1] - a[1]) * (point[0] - a[0])


@dataclass(frozen=True, slots=True)
class FeedSettings:
    """Limits of one feed of frames: sizes, times and attempts; some are those of `edge-gateway infer --video` only."""

    frame_bytes: int = 64 * 1_048_576  # largest frame as it is sent; a larger one fails
    frame_pixels: int = 33_177_600  # largest frame of the source: 7680 by 4320 pixels
    jpeg_quality: int = 90  # of frames for a model that takes JPEG only
    request_s: float = 30.0  # for each step of a request: connecting, sending, the next bytes of the answer
    open_s: float = 10.0  # for a camera to be connected
    read_s: float = 10.0  # for a camera's next packet; then the connection counts as lost
    reconnections: int = 5  # attempts in a row to connect a camera again
    pause_s: float = 1.0  # before the first attempt, or after a request that may succeed later; doubled with each one
    pause_limit_s: float = 10.0  # longest of these pauses
    broken_in_row: int = 100  # packets that cannot be decoded; one more ends the feed
    failed_in_row: int = 10  # frames without an answer; one more ends the feed
    reasons_printed: int = 3  # failed frames whose reason is printed
    stop_s: float = 2.0  # for the thread that reads to end; a read that blocks is left behind
    laps: int = 100_000  # newest frames whose times are kept for the percentiles
    refresh_per_s: float = 4.0  # changes of the line on a terminal
