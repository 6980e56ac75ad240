"""Settings of assignments, ingestion, operators' requests, the scheduler and maintenance."""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.controller.access import AccessSettings
from fleet.controller.rollouts.decisions import PART_LOW
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.settings import VAST, check_above_zero


@dataclass(frozen=True, slots=True)
class DirectorSettings:
    """`[director]`: assignments, signed on demand, and enrolment."""

    poll_s: float = 60.0  # time between two polls of a device
    poll_spread: float = 0.1  # share of poll_s by which that differs between devices
    renew_share: float = 0.5  # share of an assignment's life after which it is signed again
    published_every_s: float = 5.0  # greatest age of what is known of roots and barred releases
    keys_every_s: float = 5.0  # shortest time between two searches for a key that the publication names and is missing
    signings_at_once: int = 8  # further devices get what they had, if that is still valid, or a Retry-After
    signing_wait_s: float = 1.0  # how long a device waits for a place before that
    enrolment_token_h: float = 24.0  # default validity of an enrolment token
    certificates_per_day: int = 24  # most certificates for one device in a day

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "director", "poll_s", "signings_at_once", "enrolment_token_h", "certificates_per_day")
        check_above_zero(self, "director", "renew_share", high=1.0)


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """`[ingestion]`: bounds of what devices send, compressed and decompressed."""

    inventory_limit_bytes: int = 262_144  # of one inventory, decompressed
    telemetry_limit_bytes: int = 1_048_576  # 1 MiB: of one request, as it is sent
    telemetry_unpacked_bytes: int = 2_097_152  # 2 MiB: of one request, decompressed; parsed, up to 25 times as much
    lines_limit: int = 2_000  # of one request of telemetry: records and gaps
    rows_per_s: float = 100.0  # rows of one device in the long run; 0: no limit
    rows_burst: float = 20_000.0  # rows of one device at once after a pause, such as an outage
    sources_limit: int = 64  # streams and boots in one request
    at_once: int = 8  # requests of telemetry that are stored at one time; further ones get a Retry-After
    wait_s: float = 2.0  # how long a request waits for a place before that
    progress_every_s: float = 600.0  # an update in progress is recorded so often, or four times within silence_s
    answer_limit_bytes: int = 1_048_576  # 1 MiB: of one answer to diagnostics, decompressed
    diagnostics_validity_h: float = 24.0  # how long a device may take to answer

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        sizes = ("inventory_limit_bytes", "telemetry_limit_bytes", "telemetry_unpacked_bytes", "answer_limit_bytes")
        counts = ("lines_limit", "sources_limit", "rows_burst", "at_once", "diagnostics_validity_h")
        check_above_zero(self, "ingestion", *sizes, *counts)


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """`[requests]`: operators' requests that are repeated, or that are based on an old state."""

    idempotency_kept_h: float = 24.0  # how long the answer to an Idempotency-Key is kept
    idempotency_keys_per_caller: int = 1_000  # answers kept for one API token; the oldest go first
    require_if_match: bool = False  # true: requests that change or remove a resource must name the state that was read

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "requests", "idempotency_kept_h", "idempotency_keys_per_caller")


@dataclass(frozen=True, slots=True)
class ChangesSettings:
    """`[changes]`: streams of changes for operators and programs."""

    streams_limit: int = 256  # streams open on one replica; further ones are answered 503
    streams_per_caller: int = 8  # streams of one API token; further ones are answered 429
    refused_retry_s: float = 30.0  # Retry-After of both answers
    read_every_s: float = 1.0  # how often a replica reads new changes and revoked tokens, for all its streams
    heartbeat_s: float = 15.0  # longest time without a message
    reconnect_s: float = 3.0  # sent to clients: how long they wait before they connect again
    page_changes: int = 100  # changes read at a time
    recent_changes: int = 2_000  # changes kept in memory; a stream that is further behind reads the database

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        bounds = ("streams_limit", "streams_per_caller", "refused_retry_s", "page_changes", "recent_changes")
        check_above_zero(self, "changes", *bounds, "read_every_s", "heartbeat_s", "reconnect_s")


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """`[drafts]`: drafts, files and signatures that come over the API, and their publication."""

    accepted: bool = True  # false: on replicas with a copy of the publisher's folder, where drafts would be lost
    lock_wait_s: float = 5.0  # how long a request waits for another edge-fleet that works in the folder
    verified_at_once: int = 1  # digests of complete files verified at one time; further files wait, or are sent again
    unfinished_kept_h: float = 24.0  # retention of an incomplete upload, or of a file that no draft names
    empty_kept_min: float = 15.0  # retention of an incomplete upload that has received no byte
    unpublished_limit_files: int = 20_000  # unpublished uploads, complete or not
    unpublished_limit_bytes: int = field(default=68_719_476_736, metadata=VAST)  # 64 GiB of unpublished uploads
    share_per_token: float = 0.5  # share of both limits that one API token may take
    open_limit_per_token: int = 64  # incomplete uploads of one API token
    request_limit_bytes: int = 67_108_864  # 64 MiB: body of one request with bytes of a file; the next one continues
    request_timeout_s: float = 300.0  # longest duration of such a request
    expire_every_s: float = 600.0  # how often expired uploads are removed

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "drafts", "unfinished_kept_h", "unpublished_limit_files", "request_limit_bytes")
        check_above_zero(self, "drafts", "verified_at_once", "empty_kept_min", "open_limit_per_token")
        check_above_zero(self, "drafts", "share_per_token", high=1.0)
        check_above_zero(self, "drafts", "request_timeout_s", "expire_every_s")


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`[scheduler]`: evaluation of rollouts by the leader."""

    tick_s: float = 2.0  # how often rollouts are evaluated
    revocations_every_s: float = 5.0  # delay after which other replicas know a revoked certificate
    devices_per_tick: int = 1_000  # devices whose membership is evaluated in one tick, in rotation
    decisions_per_tick: int = 1_000  # of one rollout that are applied in one tick; the next tick then follows at once
    gap_s: float = 120.0  # longer without evaluation, or half of silence_s, is a gap: timers of rollouts are extended
    zones: tuple[str, ...] = ()  # time zone of a site: "berlin=Europe/Berlin"; else the site's name is taken for one

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "scheduler", "tick_s", "revocations_every_s", "devices_per_tick")
        if self.decisions_per_tick < PART_LOW:
            problem = f"must be {PART_LOW} or more, not {self.decisions_per_tick}"
            raise ConfigurationError(problem, table="scheduler", key="decisions_per_tick")
        if self.gap_s <= self.tick_s:
            raise ConfigurationError(f"must be above tick_s, which is {self.tick_s:g}", table="scheduler", key="gap_s")


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """`[maintenance]`: maintenance jobs and their periods."""

    sweep_every_s: float = 60.0  # telemetry and events beyond their bounds
    sweep_limit_s: float = 5.0  # of one sweep; the rest is swept in the next one
    forget_every_s: float = 3_600.0  # deletion of expired tokens and certificates ...
    forget_after_d: float = 30.0  # ... that expired at least so long ago
    clock_leap_s: float = 60.0  # after a greater leap ahead of the clock nothing is deleted by the new time ...
    clock_steady_s: float = 3_600.0  # ... until the clock advanced evenly for so long
    clock_ahead_d: float = 7.0  # likewise at the start, if the clock is so far ahead of the newest record
    archive_rollouts_d: float = 0.0  # days after its end a rollout is archived automatically; 0: never
    archive_every_s: float = 3_600.0  # period of that
    seen_every_s: float = 5.0  # period of writing when devices polled last
    revocation_list_every_s: float = 30.0  # period of checking whether proxies need another revocation list
    revocation_list_h: float = 24.0  # validity of a revocation list; the next is written at half of it
    publish_every_s: float = 60.0  # period of checking whether timestamp and snapshot are to be signed ...
    publish_share: float = 0.5  # ... which they are if less than this share of their life is left
    retry_s: float = 30.0  # pause after a job failed
    tick_s: float = 5.0  # period at which due jobs are begun

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(
            self, "maintenance", "tick_s", "revocation_list_h", "sweep_limit_s", "clock_leap_s", "clock_ahead_d"
        )
        if not 0 < self.publish_share < 1:
            raise ConfigurationError("must be between 0 and 1", table="maintenance", key="publish_share")


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of this package; and `access`, which routes check, too."""

    director: DirectorSettings = field(default_factory=DirectorSettings)
    ingestion: IntakeSettings = field(default_factory=IntakeSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    maintenance: MaintenanceSettings = field(default_factory=MaintenanceSettings)
    access: AccessSettings = field(default_factory=AccessSettings)
    requests: RequestSettings = field(default_factory=RequestSettings)
    drafts: DraftSettings = field(default_factory=DraftSettings)
