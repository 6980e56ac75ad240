"""Limits of HTTP transfers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """`[fetch]`: limits of HTTP requests, which are made one after the other."""

    connect_timeout_s: float = 10.0  # to connect, including TLS, for each address of the host
    read_timeout_s: float = 30.0  # longest silence of a server
    document_deadline_s: float = 60.0  # a metadata file, an assignment or a release document, all attempts together
    blob_deadline_s: float = 21_600.0  # one blob, all attempts together; received bytes are kept for the next poll
    rate_limit_bytes_per_s: float = 0.0  # blobs are fetched no faster than this; 0: as fast as they come
    ca_file: str | None = None  # CAs to trust (PEM); not set: those of `enrol --ca`, else the system's
    certificate_file: str | None = None  # the device's own certificate (PEM); not set: that of `enrol`
    key_file: str | None = None  # its key, if it is in another file
    proxy: str | None = None  # http://host:port of a proxy for all requests
    environment_proxy: bool = False  # use http_proxy, https_proxy and no_proxy if `proxy` is not set

    keep_alive_s: ClassVar[float] = 15.0  # a connection that was idle for longer is not used again: middleboxes drop it
    minimum_rate_bytes_per_s: ClassVar[float] = 1_000.0  # over a window; a slower server is disconnected
    minimum_rate_window_s: ClassVar[float] = 30.0  # length of that window
    rate_burst_bytes: ClassVar[int] = 65_536  # bytes that may come at once after a pause, if the rate is limited
    attempts: ClassVar[int] = 6  # in a row without progress (the minimum rate's bytes in a window), then it is an error
    backoff_base_s: ClassVar[float] = 0.5  # longest first pause; doubles, and is drawn from 0 to that (full jitter)
    backoff_limit_s: ClassVar[float] = 60.0  # longest pause between attempts
    retry_after_limit_s: ClassVar[float] = 3_600.0  # a longer Retry-After is cut to this
    redirects: ClassVar[int] = 5  # followed in a row; never from https to http
    head_limit_bytes: ClassVar[int] = 65_536  # a status line and headers larger than this are refused
    piece_bytes: ClassVar[int] = 65_536  # read from a connection at a time
    user_agent: ClassVar[str] = "edge-agent"  # what servers see in their logs
