"""How devices are answered, how much of what they send is read, and how often rollouts are looked at."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.access import AccessSettings
from fleet.rollouts.decisions import PART_LOW
from gateway.domain.errors import ConfigurationError
from gateway.domain.settings import VAST, check_above_zero


@dataclass(frozen=True, slots=True)
class DirectorSettings:
    """`[director]`: assignments, signed on demand."""

    poll_s: float = 60.0  # how long devices wait between two questions
    poll_spread: float = 0.1  # share of it by which that differs from device to device
    renew_share: float = 0.5  # of an assignment's life, after which it is signed anew
    published_every_s: float = 5.0  # how old what is known of a publication may be: of roots and barred releases
    keys_every_s: float = 5.0  # a key that the publication names and that is missing is looked for at most so often
    signings_at_once: int = 8  # further devices are answered what they had, where that still holds, or told to wait
    signing_wait_s: float = 1.0  # how long one of them waits for its turn before that
    enrolment_token_h: float = 24.0  # how long a new enrolment token may be used, where nothing else is said
    certificates_per_day: int = 24  # that one device is given at most

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_above_zero(self, "director", "poll_s", "signings_at_once", "enrolment_token_h", "certificates_per_day")
        check_above_zero(self, "director", "renew_share", high=1.0)


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """`[intake]`: what devices send; compressed and as it is read."""

    inventory_limit_bytes: int = 262_144  # of one inventory, unpacked
    telemetry_limit_bytes: int = 1_048_576  # 1 MiB: of one request, as it travels
    telemetry_unpacked_bytes: int = 2_097_152  # 2 MiB: of one request, unpacked; parsed it may take 25 times as much
    lines_limit: int = 2_000  # of one request of telemetry: records and gaps
    rows_per_s: float = 100.0  # that one device may tell in the long run; 0: as many as come
    rows_burst: float = 20_000.0  # that it may tell at once after a pause, such as an outage
    sources_limit: int = 64  # streams and boots that one request speaks of
    at_once: int = 8  # requests of telemetry that are stored at one time; further ones are told to come again
    wait_s: float = 2.0  # how long one of them waits for its turn before that
    heard_every_s: float = 600.0  # that an update still goes on is recorded that often, or four times within silence_s
    answer_limit_bytes: int = 1_048_576  # 1 MiB: of one answer to diagnostics, unpacked
    diagnostics_validity_h: float = 24.0  # how long a device may take to answer

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        sizes = ("inventory_limit_bytes", "telemetry_limit_bytes", "telemetry_unpacked_bytes", "answer_limit_bytes")
        counts = ("lines_limit", "sources_limit", "rows_burst", "at_once", "diagnostics_validity_h")
        check_above_zero(self, "intake", *sizes, *counts)


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """`[requests]`: operators' requests that are repeated, or that go by an old state."""

    idempotency_kept_h: float = 24.0  # how long the answer to an Idempotency-Key is kept
    idempotency_keys_per_caller: int = 1_000  # answers kept for one API token; the oldest go first
    require_if_match: bool = False  # true: what changes or removes a resource has to say which state of it was read

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_above_zero(self, "requests", "idempotency_kept_h", "idempotency_keys_per_caller")


@dataclass(frozen=True, slots=True)
class ChangesSettings:
    """`[changes]`: streams of changes for operators and programs."""

    streams_limit: int = 256  # open on one replica; further ones are answered 503
    streams_per_caller: int = 8  # of one API token; further ones are answered 429
    refused_retry_s: float = 30.0  # Retry-After of both
    look_every_s: float = 1.0  # how often one replica looks for new changes and revoked tokens, for all its streams
    heartbeat_s: float = 15.0  # longest time in which nothing is sent
    reconnect_s: float = 3.0  # told to clients: how long they wait before they connect again
    page_changes: int = 100  # read at a time
    recent_changes: int = 2_000  # kept in memory; a stream that is further behind reads the database

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        bounds = ("streams_limit", "streams_per_caller", "refused_retry_s", "page_changes", "recent_changes")
        check_above_zero(self, "changes", *bounds, "look_every_s", "heartbeat_s", "reconnect_s")


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """`[drafts]`: drafts, files and signatures that come over the API, and their publication."""

    accepted: bool = True  # false: on replicas with a copy of the publisher's folder, where they would be lost
    lock_wait_s: float = 5.0  # how long a request waits for another edge-fleet that works in the folder
    verified_at_once: int = 1  # complete files that are held against their digests; further ones wait, or come again
    unfinished_kept_h: float = 24.0  # after the last byte of an incomplete upload, or of a file that no draft names
    unpublished_limit_files: int = 20_000  # uploads that are not published, complete or not
    unpublished_limit_bytes: int = field(default=68_719_476_736, metadata=VAST)  # 64 GiB: of unpublished uploads
    request_limit_bytes: int = 67_108_864  # 64 MiB: one request with bytes of a file; the next one goes on
    request_timeout_s: float = 300.0  # for such a request
    expire_every_s: float = 600.0  # how often is looked for uploads that expired

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_above_zero(self, "drafts", "unfinished_kept_h", "unpublished_limit_files", "request_limit_bytes")
        check_above_zero(self, "drafts", "verified_at_once")
        check_above_zero(self, "drafts", "request_timeout_s", "expire_every_s")


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`[scheduler]`: the one replica that decides."""

    turn_s: float = 2.0  # how often rollouts are looked at
    revocations_every_s: float = 5.0  # how late another replica hears of a revoked certificate
    devices_per_turn: int = 1_000  # whose membership is asked for at a time; all come round
    decisions_per_turn: int = 1_000  # of one rollout that are carried out; the rest follows in the next turns, at once
    gap_s: float = 120.0  # nobody looked for longer, or half of silence_s: what waits in rollouts waits on
    zones: tuple[str, ...] = ()  # time zone of a site: "berlin=Europe/Berlin"; else the site's name is taken for one

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_above_zero(self, "scheduler", "turn_s", "revocations_every_s", "devices_per_turn")
        if self.decisions_per_turn < PART_LOW:
            problem = f"must be {PART_LOW} or more, not {self.decisions_per_turn}"
            raise ConfigurationError(problem, table="scheduler", key="decisions_per_turn")
        if self.gap_s <= self.turn_s:
            raise ConfigurationError(f"must be above turn_s, which is {self.turn_s:g}", table="scheduler", key="gap_s")


@dataclass(frozen=True, slots=True)
class ChoresSettings:
    """`[chores]`: what is tidied up beside the work, and how often."""

    sweep_every_s: float = 60.0  # telemetry and events beyond their bounds
    sweep_limit_s: float = 5.0  # of one sweep; what is left is swept in the next turn
    forget_every_s: float = 3_600.0  # tokens and certificates that expired
    forget_after_d: float = 30.0  # so long ago
    clock_leap_s: float = 60.0  # a clock that leaps ahead by more does not make anything old enough to be removed ...
    clock_steady_s: float = 3_600.0  # ... until it went on evenly for so long
    clock_ahead_d: float = 7.0  # likewise at the start, where it is so far beyond what was recorded last
    archive_rollouts_d: float = 0.0  # days after its end a rollout is archived by itself; 0: never
    archive_every_s: float = 3_600.0  # how often is looked for those
    seen_every_s: float = 5.0  # how often is asked which devices' last questions are to be written
    revocation_list_every_s: float = 30.0  # how often is looked whether proxies need another
    revocation_list_h: float = 24.0  # how long one holds; the next is written at half of that
    publish_every_s: float = 60.0  # how often is looked whether timestamp and snapshot are to be signed anew
    publish_share: float = 0.5  # of their life that may be left then
    retry_s: float = 30.0  # after a chore failed
    turn_s: float = 5.0  # how often is looked what is due

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_above_zero(
            self, "chores", "turn_s", "revocation_list_h", "sweep_limit_s", "clock_leap_s", "clock_ahead_d"
        )
        if not 0 < self.publish_share < 1:
            raise ConfigurationError("must be between 0 and 1", table="chores", key="publish_share")


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """The tables of this room; and `access`, by which routes ask, too."""

    director: DirectorSettings = field(default_factory=DirectorSettings)
    intake: IntakeSettings = field(default_factory=IntakeSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    chores: ChoresSettings = field(default_factory=ChoresSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    requests: RequestSettings = field(default_factory=RequestSettings)
    drafts: DraftSettings = field(default_factory=DraftSettings)
