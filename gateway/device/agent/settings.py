"""Settings of the agent: bounds of transfers, intervals and retries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class RepositorySettings:
    """`[repository]`: how much signed metadata is read."""

    root_limit_bytes: ClassVar[int] = 512_000  # one version of root
    timestamp_limit_bytes: ClassVar[int] = 16_384  # timestamp
    snapshot_limit_bytes: ClassVar[int] = 2_000_000  # snapshot, where timestamp states no length
    targets_limit_bytes: ClassVar[int] = 4_194_304  # targets and each delegated role, where snapshot states no length
    values_limit: ClassVar[int] = 500_000  # commas and brackets in all documents of one poll: together in memory
    root_rotations: ClassVar[int] = 256  # new versions of root taken in one refresh
    delegations: ClassVar[int] = 32  # roles looked into for one target
    document_limit_bytes: ClassVar[int] = 4_194_304  # largest target held in memory, whatever its metadata states


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """`[agent]`: intervals of polls, and times of steps."""

    poll_s: float = 900.0  # between two polls, unless the assignment sets another interval
    retry_s: float = 60.0  # after a poll that failed, doubling up to poll_s
    drain_s: float = 30.0  # time for requests of a removed version to finish

    jitter_percent: ClassVar[float] = 20.0  # of either, up or down at random: devices must not poll all at once
    stop_s: ClassVar[float] = 1.0  # time for a step to end after a stop signal; then it is killed, and repeated later


@dataclass(frozen=True, slots=True)
class ControlClientSettings:
    """`[control]`: the daemon's control socket."""

    socket: str = "/run/edge-gateway/control.sock"  # where the daemon listens for its agent
    load_timeout_s: float = 600.0  # for the answer to a load, which tries the variant in a throw-away process

    timeout_s: ClassVar[float] = 10.0  # for an answer
    answer_limit_bytes: ClassVar[int] = 2_097_152  # 2 MiB: largest answer that is read


@dataclass(frozen=True, slots=True)
class InstallerSettings:
    """`[installer]`: the installer of new versions of these programs, edge-software.service."""

    socket: str = "/run/edge-software.sock"  # where it takes requests
    record: str = "/var/lib/edge-software/update.json"  # its record of the last update

    timeout_s: ClassVar[float] = 30.0  # for its answer


@dataclass(frozen=True, slots=True)
class ReportSettings:
    """`[telemetry]`: reports to the controller. A device that was not enrolled sends none."""

    enabled: bool = True  # false: no reports, only polls
    deadline_s: float = 30.0  # one exchange with the controller, including enrolment and renewal
    diagnostics: bool = True  # false: requests for diagnostics are answered with a refusal

    batch_rows: ClassVar[int] = 500  # records of one request; a controller takes 1000
    batch_bytes: ClassVar[int] = 262_144  # of one request, before it is compressed
    batches: ClassVar[int] = 16  # requests of one report; the rest waits for the next
    refresh_s: ClassVar[float] = 21_600.0  # 6 h: unchanged state is reported again, so that rollouts see held devices
    retry_s: ClassVar[float] = 60.0  # after a report that failed, doubling
    retry_limit_s: ClassVar[float] = 3_600.0  # longest pause


@dataclass(frozen=True, slots=True)
class DiagnosticsSettings:
    """`[diagnostics]`: bounds of answers to operators who request diagnostics through the controller."""

    log_units: tuple[str, ...] = ("edge-agent.service", "edge-gateway.service")  # units whose last lines are sent

    requests: ClassVar[int] = 4  # answered in one report; the rest waits for the next
    least_pause_s: ClassVar[float] = 60.0  # after a report that answered requests, however many wait
    wanted_limit: ClassVar[int] = 16  # names in one request that are read
    answer_bytes: ClassVar[int] = 262_144  # 256 KiB: one answer, uncompressed; a section beyond that is left out
    log_lines: ClassVar[int] = 200  # of each of them
    log_bytes: ClassVar[int] = 65_536  # of each of them; older lines are left out
    log_timeout_s: ClassVar[float] = 10.0  # for journalctl to find them


@dataclass(frozen=True, slots=True)
class WakeClientSettings:
    """`[wake]`: a broker on which the fleet sends hints to poll now. Hints carry no other information."""

    url: str | None = None  # mqtt://host:port or mqtts://host:port; not set: no broker is asked
    topic: str = "edge-fleet/{device}/wake"  # any message there counts, whatever its content
    keepalive_s: int = 300  # time without packets after which a ping is sent: both ends detect a broken connection

    least_pause_s: ClassVar[float] = 60.0  # between two polls, however many hints come
    spread_s: ClassVar[float] = 10.0  # a woken device waits up to that long: devices must not poll all at once
    connect_timeout_s: ClassVar[float] = 10.0  # until the broker has accepted the subscription
    retry_s: ClassVar[float] = 60.0  # before the broker is tried again, doubling up to retry_limit_s
    retry_limit_s: ClassVar[float] = 3_600.0  # longest pause between attempts
