"""Settings of a simulation, with the shares of devices that misbehave."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from gateway.common.domain.errors import ConfigurationError

POLL_DEFAULT_S = 900.0
"""The default of `edge-agent`."""


@dataclass(frozen=True, slots=True)
class BehaviourShares:
    """Percentages of misbehaving devices. The others behave normally."""

    lying: float = 0.0  # report a commit and run another release
    replaying: float = 0.0  # send old telemetry again and poll with an old nonce
    flooding: float = 0.0  # send far too much telemetry
    failing: float = 0.0  # roll back, with evidence
    silent: float = 0.0  # stop once something was offered to them

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in values.items():
            if not 0.0 <= value <= 100.0:
                raise ConfigurationError(f"--{name} {value:g}: percent of the devices, 0 to 100")
        if sum(values.values()) > 100.0:
            raise ConfigurationError("more than 100 percent of the devices would misbehave; say less of each")


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one simulation."""

    url: str  # of the controller
    devices: int  # how many
    seed: int = 0  # determines which devices misbehave and their hardware
    prefix: str = "sim"  # names are PREFIX-000001 and so on
    shares: BehaviourShares = field(default_factory=BehaviourShares)
    poll_s: float | None = None  # between two polls; not set: as the controller assigns to each device
    jitter_percent: float = 20.0  # of poll_s, up or down
    download_s: float = 0.0  # time that a download takes
    probation_s: float = 0.0  # time that a probation takes
    retry_s: float = 5.0  # after a failed poll, doubling up to poll_s
    at_once: int = 64  # devices that communicate at the same time
    keep_alive: bool = False  # connections stay open between two polls; else each poll opens one, as agents do
    resume: bool = False  # TLS sessions are resumed, which agents do not
    refresh: bool = False  # each poll refreshes the repository's metadata through this server, as agents do
    quiet: bool = False  # report changes only, not vitals and statistics with every poll
    timeout_s: float = 60.0  # for a response
    spread: bool = True  # a controller on this machine: every device has a loopback address of its own
    spool_limit_rows: int = 2_000  # records in one device; beyond it no more vitals are made
    batch_rows: int = 500  # records of one request
    flood_batches: int = 8  # requests that a flooding device sends with each poll

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        if self.devices < 1 or self.at_once < 1:
            raise ConfigurationError("--devices and --at-once are at least 1")
        for name in ("poll_s", "download_s", "probation_s"):
            if (getattr(self, name) or 0.0) < 0.0:
                raise ConfigurationError(f"--{name.removesuffix('_s')}: seconds, at least 0")
