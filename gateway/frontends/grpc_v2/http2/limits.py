"""What a peer may ask of one connection, each bound with its unit and the precedent it follows."""

from __future__ import annotations

from dataclasses import dataclass, fields

from gateway.domain.errors import ConfigurationError
from gateway.frontends.grpc_v2.http2 import frames
from gateway.frontends.grpc_v2.http2.frames import (
    DEFAULT_FRAME_SIZE,
    DEFAULT_WINDOW,
    LARGEST_FRAME_SIZE,
    LARGEST_WINDOW,
)

TABLE = "grpc.http2"


@dataclass(frozen=True, slots=True)
class Limits:
    """`[grpc.http2]`. The flood guards are token buckets: `…_burst` at once, `…_per_s` in the long run; beyond them the
    connection is closed with ENHANCE_YOUR_CALM."""

    max_streams: int = 1024  # open at once; the next is reset REFUSED_STREAM, which clients tell as UNAVAILABLE
    max_header_bytes: int = 16_384  # all headers of one call, unfolded (gRPC C-core's hard limit)
    max_continuations: int = 8  # CONTINUATION frames of one block (nghttp2's bound; CVE-2024-27316)
    max_frame_bytes: int = 1_048_576  # largest DATA frame we ask for
    connection_window_bytes: int = 16_777_216  # bytes in flight to us over all streams
    stream_window_bytes: int = 1_048_576  # ... of one stream, until its message announces that it is larger
    resets_burst: int = 1000  # calls given up before they were answered (nghttp2's bound; CVE-2023-44487)
    resets_per_s: float = 100.0  # ... and in the long run
    controls_burst: int = 1000  # SETTINGS, PING, PRIORITY, empty DATA, unknown (Envoy's bound; CVE-2019-9512 to 9518)
    controls_per_s: float = 100.0  # ... and in the long run
    max_unread_bytes: int = 262_144  # HEADERS and control frames said to a peer that takes nothing (CVE-2019-9512)
    window_updates_per_frame: int = 10  # a frame that we said pays for so many; more cost as controls (Envoy's bound)
    min_ping_interval_ms: int = 10_000  # pings that come faster, without traffic of ours, are strikes (gRFC A8)
    max_ping_strikes: int = 4  # ... and more than so many close the connection
    unanswered_work_ms: int = 2000  # processor time spent on a connection since its last answered call; beyond it ...
    unanswered_work_per_s_ms: int = 50  # ... and this much for each second since, the connection is closed

    @property
    def most_at_once(self) -> int:
        """Bytes that one DATA frame of a new stream may have."""
        return min(self.max_frame_bytes, self.stream_window_bytes)

    def settings_frame(self) -> bytes:
        """What the peer must know of it."""
        return frames.settings_frame(
            {
                frames.MAX_CONCURRENT_STREAMS: self.max_streams,
                frames.INITIAL_WINDOW_SIZE: self.stream_window_bytes,
                frames.MAX_FRAME_SIZE: self.max_frame_bytes,
                frames.MAX_HEADER_LIST_SIZE: self.max_header_bytes,
            }
        )

    def __post_init__(self) -> None:
        """Refuse what HTTP/2 cannot hold. Raises ConfigurationError (table grpc.http2)."""
        for spec in fields(self):
            if getattr(self, spec.name) <= 0:
                raise ConfigurationError("must be more than 0", table=TABLE, key=spec.name)
        _check("max_streams", self.max_streams, 1, LARGEST_WINDOW)
        _check("max_frame_bytes", self.max_frame_bytes, DEFAULT_FRAME_SIZE, LARGEST_FRAME_SIZE)
        _check("stream_window_bytes", self.stream_window_bytes, DEFAULT_WINDOW, LARGEST_WINDOW)
        _check("connection_window_bytes", self.connection_window_bytes, DEFAULT_WINDOW + 1, LARGEST_WINDOW)


def _check(key: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigurationError(f"must be between {low} and {high}, not {value}", table=TABLE, key=key)
