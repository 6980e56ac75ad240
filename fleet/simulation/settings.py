"""What is simulated, and how many of the devices misbehave."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from gateway.domain.errors import ConfigurationError

POLL_DEFAULT_S = 900.0
"""As `edge-agent`'s own, where nobody says otherwise."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Percent of the devices; the others behave."""

    lying: float = 0.0  # say that they committed, and run something else
    replaying: float = 0.0  # send old telemetry again, and ask with an old nonce
    flooding: float = 0.0  # tell far more than anybody wants to know
    failing: float = 0.0  # roll back, with evidence
    silent: float = 0.0  # are heard of no more once something was offered to them

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if not 0.0 <= value <= 100.0:
                raise ConfigurationError(f"--{name} {value:g}: percent of the devices, 0 to 100")
        if sum(values.values()) > 100.0:
            raise ConfigurationError("more than 100 percent of the devices would misbehave; say less of each")


@dataclass(frozen=True, slots=True)
class Settings:
    """A simulation."""

    url: str  # of the controller
    devices: int  # how many
    seed: int = 0  # who misbehaves and what hardware each has follow from it
    prefix: str = "sim"  # names are PREFIX-000001 and so on
    shares: Shares = field(default_factory=Shares)
    poll_s: float | None = None  # between two questions; not set: as the controller tells each device
    jitter_percent: float = 20.0  # of that, up or down
    download_s: float = 0.0  # that a release takes to come
    probation_s: float = 0.0  # that a release is watched
    retry_s: float = 5.0  # after a question that failed, doubling up to poll_s
    at_once: int = 64  # devices that talk at the same time
    keep_alive: bool = False  # connections stay open between two questions; else each question opens one, as agents do
    resume: bool = False  # TLS sessions are resumed, which agents do not
    refresh: bool = False  # each question refreshes the repository's metadata through this server, as agents do
    quiet: bool = False  # only what changed is told, not vitals and statistics with every question
    timeout_s: float = 60.0  # for an answer
    spread: bool = True  # a controller on this machine: every device has a loopback address of its own
    spool_limit_rows: int = 2_000  # that wait in one device; then no more vitals are made
    batch_rows: int = 500  # of one request
    flood_batches: int = 8  # that a flooding device sends with each question

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.devices < 1 or self.at_once < 1:
            raise ConfigurationError("--devices and --at-once are at least 1")
        for name in ("poll_s", "download_s", "probation_s"):
            if (getattr(self, name) or 0.0) < 0.0:
                raise ConfigurationError(f"--{name.removesuffix('_s')}: seconds, at least 0")
