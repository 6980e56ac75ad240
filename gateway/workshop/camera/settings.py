"""Limits of `edge-gateway infer --video` and `--camera`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CameraSettings:
    """Sizes, times and attempts of one feed of frames."""

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
