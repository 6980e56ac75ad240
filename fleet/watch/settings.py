"""What alerts are opened for, and how much is told to whom."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.domain.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """`[alerts]`: 0 of a limit turns its rule off."""

    look_every_s: float = 15.0  # how often the leader looks
    settle_s: float = (
        15.0  # what was received since then is looked at next time; replicas' clocks may differ by so much
    )
    silent_s: float = 3_600.0  # a device that asks for nothing for that long
    error_percent: float = 5.0  # failed runs of a slot's requests, over a sample
    error_min_sample: int = 100  # requests of a sample; a slot with fewer waits for more
    temperature_c: float = 85.0  # of the hottest zone
    temperature_s: float = 600.0  # for that long at least
    temperature_margin_c: float = 5.0  # it has to fall so far below the limit
    rollback: bool = True  # an update that a device gave up, with its evidence
    halted: bool = True  # a rollout that stopped or gave up by itself
    certificate_d: float = 14.0  # a device's certificate that holds no longer than that and was not renewed
    clock_s: float = 300.0  # how far a device's clock may be ahead
    repository_d: float = 14.0  # a role signed offline that holds no longer than that
    barred: bool = True  # a release that devices run, and that its owner withdrew or set a floor above
    lasts_s: float = 86_400.0  # an alert of which nothing is heard for that long is closed
    calm_s: float = 120.0  # how long it has to be over before an alert is closed: what wavers is told once
    open_limit: int = 10_000  # at one time; further ones are counted only
    device_limit: int = 16  # likewise of one device: one that lies must not hide others
    keep_d: float = 90.0  # how long a closed alert is remembered
    keep_limit_rows: int = 100_000  # closed alerts; the oldest go first
    rows_limit: int = 5_000  # of telemetry read at once
    pages_limit: int = 20  # read in one look; the rest waits for the next
    samples_limit: int = 100_000  # devices whose counters are remembered; the longest silent are forgotten first
    url: str = ""  # a webhook; "": alerts are kept, and shown, and sent nowhere
    secret_file: str = ""  # with which messages are signed: whsec_ and base64 (Standard Webhooks), beneath the folder
    ca_file: str = ""  # PEM of whom is believed, beneath the folder; "": the system's authorities
    timeout_s: float = 15.0  # for the receiver to answer
    retry_s: float = 5.0  # longest pause after the first failure; doubles, and is drawn from 0 to that
    retry_limit_s: float = 3_600.0  # longest pause
    give_up_s: float = 259_200.0  # 3 d: a message that nobody took for that long is dropped, and counted
    refusals_limit: int = 5  # how often the receiver may refuse (4xx) one message before it is dropped
    batch_rows: int = 100  # messages read at once

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_url(self.url, "alerts")
        for name in (
            "look_every_s",
            "lasts_s",
            "error_min_sample",
            "rows_limit",
            "pages_limit",
            "batch_rows",
            "retry_s",
        ):
            if getattr(self, name) <= 0:
                raise ConfigurationError("must be above 0", table="alerts", key=name)


@dataclass(frozen=True, slots=True)
class WakeSettings:
    """`[wake]`: a broker on which devices are told that asking now is worth while. Nothing else is said there."""

    url: str = ""  # mqtt://HOST:PORT or mqtts://HOST:PORT; empty: devices ask in their own time
    topic: str = "edge-fleet/{device}/wake"  # where the device listens
    user: str = ""  # for brokers that ask who speaks
    password_file: str = ""  # its first line is the password; beneath the folder, as the files below
    ca_file: str = ""  # PEM; empty: the system's authorities
    certificate_file: str = ""  # PEM, for brokers that ask for one
    key_file: str = ""  # PEM; empty: in certificate_file
    keepalive_s: int = 60  # sent when nothing else was for so long
    retry_limit_s: float = 60.0  # longest pause between attempts to reach the broker
    per_s: int = 200  # devices that are woken in a second: each of them asks

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        if self.url and (self.per_s < 1 or self.retry_limit_s < 1):
            raise ConfigurationError("must be 1 at least", table="wake", key="per_s, retry_limit_s")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """`[metrics]`: the page of /metrics."""

    cache_s: float = 30.0  # how old what the database has to count may be
    own_every_s: float = 60.0  # how often the controller's own metrics go to [otlp]


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """`[otlp]`: an OTLP/HTTP endpoint; what cannot be sent is dropped and counted, never sent twice."""

    url: str = ""  # such as http://collector:4318; /v1/metrics and /v1/logs are put behind it; "": nothing is sent
    headers_file: str = ""  # a header a line ("Authorization: Bearer …"), beneath the folder
    ca_file: str = ""  # PEM of whom is believed, beneath the folder; "": the system's authorities
    queue_limit_bytes: int = 33_554_432  # 32 MiB: of requests that wait; further ones are dropped
    request_limit_bytes: int = 4_194_304  # 4 MiB: of one request, before it is compressed
    names_limit: int = 128  # models, zones and the like that one device may bring in a day: each is a time series there
    timeout_s: float = 10.0  # for the endpoint to answer
    attempts: int = 5  # for one request, where the endpoint says that it took nothing
    retry_s: float = 1.0  # longest pause after the first failure; doubles, and is drawn from 0 to that
    retry_limit_s: float = 60.0  # longest pause, also where the endpoint asks for more

    def __post_init__(self) -> None:
        """Raises ConfigurationError."""
        check_url(self.url, "otlp")
        if self.retry_s <= 0:
            raise ConfigurationError("must be above 0", table="otlp", key="retry_s")


def check_url(url: str, table: str) -> None:
    """Raises ConfigurationError for what is neither "" nor an HTTP URL without a name or password in it."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if url and (not fits or parts.username is not None or parts.fragment):
        raise ConfigurationError("must be http://host… or https://host…, without a password", table=table, key="url")
