"""What a peer may ask of one connection, each bound with its unit and the precedent it follows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The flood guards are token buckets: `…_burst` at once, `…_per_s` in the long run; beyond them the connection is
    closed with ENHANCE_YOUR_CALM."""

    max_streams: int = 1024  # open at once; the next is reset REFUSED_STREAM, which clients tell as UNAVAILABLE
    max_header_bytes: int = (
        16 * 1024
    )  # a header list, and a block before it is unfolded (gRPC: 8 KiB soft, 16 KiB hard)
    max_continuations: int = 8  # CONTINUATION frames of one block (nghttp2's bound; CVE-2024-27316)
    max_frame_bytes: int = 1024 * 1024  # largest DATA frame we ask for
    connection_window_bytes: int = 16 * 1024 * 1024  # bytes in flight to us over all streams
    stream_window_bytes: int = 1024 * 1024  # … of one stream, until its message announces that it is larger
    resets_burst: int = 1000  # calls given up before they were answered (nghttp2's and Node's bound; CVE-2023-44487)
    resets_per_s: float = 100.0
    controls_burst: int = (
        1000  # SETTINGS, PING, PRIORITY, empty DATA, unknown frames (Envoy's 1000 replies; CVE-2019-9512)
    )
    controls_per_s: float = 100.0
    max_unread_bytes: int = 256 * 1024  # HEADERS and control frames said to a peer that takes nothing (CVE-2019-9512)
    window_updates_per_frame: int = 10  # a frame that we said pays for so many; more cost as controls (Envoy's bound)
    min_ping_interval_ms: int = 10_000  # pings that come faster, without traffic of ours, are strikes (gRFC A8)
    max_ping_strikes: int = 4  # … and more than so many close the connection
