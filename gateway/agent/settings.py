"""Bounds of what the agent fetches, and of how long and how often it tries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """`[fetch]`: one HTTP request after the other, none of which a server can drag out or swell."""

    connect_timeout_s: float = 10.0  # until a connection stands, TLS included, for each address of the host
    read_timeout_s: float = 30.0  # longest silence of a server
    document_deadline_s: float = 60.0  # a metadata file, an assignment or a release document, all attempts together
    blob_deadline_s: float = 21_600.0  # one blob, all attempts together; what came so far is kept for the next poll
    minimum_rate_bytes_per_s: float = 1_000.0  # over a window; a server that sends less is hung up on
    minimum_rate_window_s: float = 30.0  # length of that window
    rate_limit_bytes_per_s: float = 0.0  # blobs are fetched no faster than this; 0: as fast as they come
    rate_burst_bytes: int = 65_536  # how much may come at once after a pause where the rate is limited
    attempts: int = 6  # in a row without progress (what the minimum rate makes in a window), then it is an error
    backoff_base_s: float = (
        0.5  # longest first pause between attempts; doubles, and is drawn from 0 to that (full jitter)
    )
    backoff_limit_s: float = 60.0  # longest pause between attempts
    retry_after_limit_s: float = 3_600.0  # a server that asks for a longer pause than this is not believed
    redirects: int = 5  # followed in a row; never from https to http
    head_limit_bytes: int = 65_536  # a status line and headers larger than this are refused
    piece_bytes: int = 65_536  # read from a connection at a time
    ca_file: str | None = None  # trust these certificates (PEM) instead of the system's
    certificate_file: str | None = None  # the device's own certificate (PEM), shown to servers that ask
    key_file: str | None = None  # its key, where it is not in the same file
    proxy: str | None = None  # http://host:port through which everything goes
    environment_proxy: bool = False  # whether http_proxy, https_proxy and no_proxy count where `proxy` is not set
    user_agent: str = "edge-agent"  # what servers see in their logs


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """`[repository]`: how much signed metadata is read."""

    root_limit_bytes: int = 512_000  # one version of root
    timestamp_limit_bytes: int = 16_384  # timestamp
    snapshot_limit_bytes: int = 2_000_000  # snapshot, where timestamp states no length
    targets_limit_bytes: int = 4_194_304  # targets and each delegated role, where snapshot states no length
    values_limit: int = 500_000  # commas and brackets in all documents of one question, which stay in memory together
    root_rotations: int = 256  # new versions of root taken in one refresh
    delegations: int = 32  # roles looked into for one target
    document_limit_bytes: int = 4_194_304  # largest target held in memory, whatever length its metadata states


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`[agent]`: how often it asks, and what it waits for."""

    poll_s: float = 900.0  # between two questions, unless the fleet says otherwise
    retry_s: float = 60.0  # after a question that failed, doubling up to poll_s
    jitter_percent: float = 20.0  # of either, up or down at random: a fleet must not ask all at once
    drain_s: float = 30.0  # how long requests of a version that goes may finish


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """`[control]`: the daemon's control socket."""

    socket: str = "/run/edge-gateway/control.sock"  # where the daemon listens for its agent
    timeout_s: float = 10.0  # for an answer
    load_timeout_s: float = 600.0  # for the answer to a load, which tries the variant in a throw-away process
    answer_limit_bytes: int = 2_097_152  # 2 MiB: largest answer that is read
