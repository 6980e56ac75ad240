"""Settings of assignments, ingestion, operators' requests, the scheduler and maintenance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from fleet.controller.access import AccessSettings
from gateway.common.domain.settings import VAST, check_above_zero


@dataclass(frozen=True, slots=True)
class DirectorSettings:
    """`[director]`: assignments, signed on demand, and enrolment."""

    poll_s: float = 60.0  # time between two polls of a device
    enrolment_token_h: float = 24.0  # default validity of an enrolment token
    poll_spread: ClassVar[float] = 0.1  # share of poll_s by which that differs between devices
    renew_share: ClassVar[float] = 0.5  # share of an assignment's life after which it is signed again
    published_every_s: ClassVar[float] = 5.0  # greatest age of what is known of roots and barred releases
    keys_every_s: ClassVar[float] = 5.0  # shortest time between two searches for a missing key of the publication
    signings_at_once: ClassVar[int] = 8  # further devices get what they had, if that is still valid, or a Retry-After
    signing_wait_s: ClassVar[float] = 1.0  # how long a device waits for a place before that
    certificates_per_day: ClassVar[int] = 24  # most certificates for one device in a day

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "director", "poll_s", "enrolment_token_h")


@dataclass(frozen=True, slots=True)
class IntakeSettings:
    """`[ingestion]`: bounds of what devices send, compressed and decompressed."""

    rows_per_s: float = 100.0  # rows of one device in the long run; 0: no limit
    diagnostics_validity_h: float = 24.0  # how long a device may take to answer
    inventory_limit_bytes: ClassVar[int] = 262_144  # of one inventory, decompressed
    telemetry_limit_bytes: ClassVar[int] = 1_048_576  # 1 MiB: of one request, as it is sent
    telemetry_unpacked_bytes: ClassVar[int] = 2_097_152  # 2 MiB: of one request, decompressed; parsed, 25 times that
    lines_limit: ClassVar[int] = 2_000  # of one request of telemetry: records and gaps
    rows_burst: ClassVar[float] = 20_000.0  # rows of one device at once after a pause, such as an outage
    sources_limit: ClassVar[int] = 64  # streams and boots in one request
    at_once: ClassVar[int] = 8  # requests of telemetry that are stored at one time; further ones get a Retry-After
    wait_s: ClassVar[float] = 2.0  # how long a request waits for a place before that
    progress_every_s: ClassVar[float] = 600.0  # how often an update in progress is recorded; 4 times within silence_s
    answer_limit_bytes: ClassVar[int] = 1_048_576  # 1 MiB: of one answer to diagnostics, decompressed

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "ingestion", "diagnostics_validity_h")


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """`[requests]`: operators' requests that are repeated, or that are based on an old state."""

    require_if_match: bool = False  # true: requests that change or remove a resource must name the state that was read
    idempotency_kept_h: ClassVar[float] = 24.0  # how long the answer to an Idempotency-Key is kept
    idempotency_keys_per_caller: ClassVar[int] = 1_000  # answers kept for one API token; the oldest go first


@dataclass(frozen=True, slots=True)
class ChangesSettings:
    """`[changes]`: streams of changes for operators and programs."""

    streams_limit: int = 256  # streams open on one replica; further ones are answered 503
    streams_per_caller: int = 8  # streams of one API token; further ones are answered 429
    heartbeat_s: float = 15.0  # longest time without a message
    refused_retry_s: ClassVar[float] = 30.0  # Retry-After of both answers
    read_every_s: ClassVar[float] = 1.0  # how often a replica reads new changes and revoked tokens, for all its streams
    reconnect_s: ClassVar[float] = 3.0  # sent to clients: how long they wait before they connect again
    page_changes: ClassVar[int] = 100  # changes read at a time
    recent_changes: ClassVar[int] = 2_000  # changes kept in memory; a stream that is further behind reads the database

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "changes", "streams_limit", "streams_per_caller", "heartbeat_s")


@dataclass(frozen=True, slots=True)
class DraftSettings:
    """`[drafts]`: drafts, files and signatures that come over the API, and their publication."""

    accepted: bool = True  # false: on replicas with a copy of the publisher's folder, where drafts would be lost
    unfinished_kept_h: float = 24.0  # retention of an incomplete upload, or of a file that no draft names
    unpublished_limit_bytes: int = field(default=68_719_476_736, metadata=VAST)  # 64 GiB of unpublished uploads
    lock_wait_s: ClassVar[float] = 5.0  # how long a request waits for another edge-fleet that works in the folder
    verified_at_once: ClassVar[int] = 1  # digests of files verified at one time; further files wait, or are sent again
    empty_kept_min: ClassVar[float] = 15.0  # retention of an incomplete upload that has received no byte
    unpublished_limit_files: ClassVar[int] = 20_000  # unpublished uploads, complete or not
    share_per_token: ClassVar[float] = 0.5  # share of both limits that one API token may take
    open_limit_per_token: ClassVar[int] = 64  # incomplete uploads of one API token
    request_limit_bytes: ClassVar[int] = 67_108_864  # 64 MiB: body of one request with bytes of a file
    request_timeout_s: ClassVar[float] = 300.0  # longest duration of such a request
    expire_every_s: ClassVar[float] = 600.0  # how often expired uploads are removed

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "drafts", "unfinished_kept_h")


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """`[scheduler]`: evaluation of rollouts by the leader."""

    tick_s: float = 2.0  # how often rollouts are evaluated
    zones: tuple[str, ...] = ()  # time zone of a site: "berlin=Europe/Berlin"; else the site's name is taken for one
    revocations_every_s: ClassVar[float] = 5.0  # delay after which other replicas know a revoked certificate
    devices_per_tick: ClassVar[int] = 1_000  # devices whose membership is evaluated in one tick, in rotation
    decisions_per_tick: ClassVar[int] = 1_000  # of one rollout, applied in one tick; the next tick then follows at once
    gap_s: ClassVar[float] = 120.0  # a longer pause, or half of silence_s, is a gap: it extends timers of rollouts

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "scheduler", "tick_s", high=self.gap_s / 2)


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """`[maintenance]`: maintenance jobs and their periods."""

    archive_rollouts_d: float = 0.0  # days after its end a rollout is archived automatically; 0: never
    revocation_list_h: float = 24.0  # validity of a revocation list; the next is written at half of it
    sweep_every_s: ClassVar[float] = 60.0  # telemetry and events beyond their bounds
    sweep_limit_s: ClassVar[float] = 5.0  # of one sweep; the rest is swept in the next one
    forget_every_s: ClassVar[float] = 3_600.0  # deletion of expired tokens and certificates ...
    forget_after_d: ClassVar[float] = 30.0  # ... that expired at least so long ago
    clock_leap_s: ClassVar[float] = 60.0  # after a greater leap ahead of the clock nothing is deleted by the new time
    clock_steady_s: ClassVar[float] = 3_600.0  # ... until the clock advanced evenly for so long
    clock_ahead_d: ClassVar[float] = 7.0  # likewise at the start, if the clock is so far ahead of the newest record
    archive_every_s: ClassVar[float] = 3_600.0  # period of that
    seen_every_s: ClassVar[float] = 5.0  # period of writing when devices polled last
    revocation_list_every_s: ClassVar[float] = 30.0  # period of checking whether proxies need another revocation list
    publish_every_s: ClassVar[float] = 60.0  # period of checking whether timestamp and snapshot are to be signed ...
    publish_share: ClassVar[float] = 0.5  # ... which they are if less than this share of their life is left
    retry_s: ClassVar[float] = 30.0  # pause after a job failed
    tick_s: ClassVar[float] = 5.0  # period at which due jobs are begun

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "maintenance", "revocation_list_h")


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
