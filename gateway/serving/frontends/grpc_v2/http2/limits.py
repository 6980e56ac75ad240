"""Limits of a peer's requests on one connection, each with its unit and the precedent that it follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gateway.serving.frontends.grpc_v2.http2 import frames


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """Limits of HTTP/2. None is a setting.

    The flood guards are token buckets: `…_burst` at once, `…_per_s` in the long run. Above them the connection is
    closed with ENHANCE_YOUR_CALM.
    """

    max_streams: ClassVar[int] = 1024  # open at once; the next is reset REFUSED_STREAM, to clients UNAVAILABLE
    max_header_bytes: ClassVar[int] = 16_384  # all headers of one call, decompressed (gRPC C-core's hard limit)
    max_continuations: ClassVar[int] = 8  # CONTINUATION frames of one block (nghttp2's bound; CVE-2024-27316)
    max_frame_bytes: ClassVar[int] = 1_048_576  # largest DATA frame that is offered
    connection_window_bytes: ClassVar[int] = 16_777_216  # bytes in flight to the gateway over all streams
    stream_window_bytes: ClassVar[int] = 1_048_576  # ... of one stream, until its message announces that it is larger
    resets_burst: ClassVar[int] = 1000  # calls cancelled before they were answered (nghttp2's bound; CVE-2023-44487)
    resets_per_s: ClassVar[float] = 100.0  # ... and in the long run
    controls_burst: ClassVar[int] = 1000  # SETTINGS, PING, empty DATA, … (Envoy's bound; CVE-2019-9512 to 9518)
    controls_per_s: ClassVar[float] = 100.0  # ... and in the long run
    max_unread_bytes: ClassVar[int] = 262_144  # HEADERS and control frames to a peer that reads nothing (CVE-2019-9512)
    window_updates_per_frame: ClassVar[int] = 10  # updates that a sent frame pays for; more are controls (as Envoy)
    min_ping_interval_ms: ClassVar[int] = 10_000  # faster pings, without sent frames between, are strikes (gRFC A8)
    max_ping_strikes: ClassVar[int] = 4  # ... and more than this many close the connection
    unanswered_work_ms: ClassVar[int] = 2000  # CPU time for a connection since its last answered call; above it ...
    unanswered_work_per_s_ms: ClassVar[int] = 50  # ... and this much for each second since, the connection is closed

    @property
    def most_at_once(self) -> int:
        """Return the most bytes that one DATA frame of a new stream may have."""
        return min(self.max_frame_bytes, self.stream_window_bytes)

    def settings_frame(self) -> bytes:
        """Return the SETTINGS frame with these limits."""
        return frames.settings_frame(
            {
                frames.MAX_CONCURRENT_STREAMS: self.max_streams,
                frames.INITIAL_WINDOW_SIZE: self.stream_window_bytes,
                frames.MAX_FRAME_SIZE: self.max_frame_bytes,
                frames.MAX_HEADER_LIST_SIZE: self.max_header_bytes,
            }
        )
