"""Bounds of what the agent fetches, and of how long and how often it tries."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """`[fetch]`: one HTTP request after the other, none of which a server can drag out or swell."""

    connect_timeout_s: float = 10.0  # until a connection stands, TLS included, for each address of the host
    read_timeout_s: float = 30.0  # longest silence of a server
    keep_alive_s: float = 15.0  # a connection that was idle for longer is not used again: who is in between forgets it
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
    ca_file: str | None = None  # trust these certificates (PEM); not set: `enrol --ca`'s, else the system's
    certificate_file: str | None = None  # the device's own certificate (PEM); not set: what `enrol` brought
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
    stop_s: float = (
        1.0  # how long a step may go on once the agent is told to stop; then it is broken off, and done again
    )


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """`[control]`: the daemon's control socket."""

    socket: str = "/run/edge-gateway/control.sock"  # where the daemon listens for its agent
    timeout_s: float = 10.0  # for an answer
    load_timeout_s: float = 600.0  # for the answer to a load, which tries the variant in a throw-away process
    answer_limit_bytes: int = 2_097_152  # 2 MiB: largest answer that is read


@dataclass(frozen=True, slots=True)
class InstallerSettings:
    """`[installer]`: the installer of new versions of these programs, edge-software.service."""

    socket: str = "/run/edge-software.sock"  # where it takes requests
    record: str = "/var/lib/edge-software/update.json"  # where it says how the last update went
    timeout_s: float = 30.0  # for its answer


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """`[telemetry]`: what is told to a controller; a device that was not enrolled tells nobody anything."""

    enabled: bool = True  # false: nothing is told but the questions themselves
    deadline_s: float = 30.0  # one exchange with the controller, enrolment and renewal among them
    batch_rows: int = 500  # records of one request; a controller takes 1000
    batch_bytes: int = 262_144  # of one request, before it is compressed
    batches: int = 16  # requests of one report; what is left waits for the next
    refresh_s: float = 21_600.0  # 6 h: what has not changed is told again; rollouts hear so who is only held
    retry_s: float = 60.0  # after a report that was not taken, doubling
    retry_limit_s: float = 3_600.0  # longest pause
    diagnostics: bool = True  # false: who asks this device for diagnostics is told that it refuses


@dataclass(frozen=True, slots=True)
class DiagnosticsSettings:
    """`[diagnostics]`: bounds of an answer to somebody who asks, through the controller, how this device is."""

    requests: int = 4  # answered in one report; the rest waits for the next
    least_pause_s: float = 60.0  # after a report that answered some, however often somebody asks
    wanted_limit: int = 16  # names in one request that are looked at
    answer_bytes: int = 262_144  # 256 KiB: one answer, before it is compressed; a section beyond that is left out
    log_units: tuple[str, ...] = ("edge-agent.service", "edge-gateway.service")  # whose last lines are sent
    log_lines: int = 200  # of each of them
    log_bytes: int = 65_536  # of each of them; older lines are left out
    log_timeout_s: float = 10.0  # for journalctl to find them


@dataclass(frozen=True, slots=True)
class WakeSettings:
    """`[wake]`: a broker on which the fleet says that asking now is worth while. It can say nothing else."""

    url: str | None = None  # mqtt://host:port or mqtts://host:port; not set: no broker is asked
    topic: str = "edge-fleet/{device}/wake"  # any message there counts, whatever it says
    keepalive_s: int = 300  # sent when nothing else was for so long, so that both ends notice a broken connection
    connect_timeout_s: float = 10.0  # until the broker has taken the subscription
    retry_s: float = 60.0  # before the broker is tried again, doubling up to retry_limit_s
    retry_limit_s: float = 3_600.0  # longest pause between attempts
    least_pause_s: float = 60.0  # between two questions, however often the broker says so
    spread_s: float = 10.0  # a woken device waits up to that long: a fleet must not ask all at once
