"""Settings of alerts, wake hints, metrics and OTLP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.settings import check_above_zero


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Table `[alerts]`. A limit of 0 turns its rule off."""

    silent_s: float = 3_600.0  # time without a poll of a device
    error_percent: float = 5.0  # failed runs of a slot's requests, over a sample
    temperature_c: float = 85.0  # temperature of the hottest zone
    temperature_s: float = 600.0  # shortest time above it
    rollback: bool = True  # failed updates, with their evidence
    halted: bool = True  # rollouts that were paused or aborted automatically
    certificate_d: float = 14.0  # remaining validity of a device's newest certificate
    clock_s: float = 300.0  # limit of how far a device's clock is ahead
    repository_d: float = 14.0  # remaining validity of a role signed offline
    barred: bool = True  # releases that devices run, withdrawn or below a floor
    removal: bool = True  # slots that wait to be emptied
    identity_s: float = 3_600.0  # time for which only one machine must report before its identity counts as used once
    keep_d: float = 90.0  # retention of closed alerts
    url: str = ""  # webhook; "": alerts are kept and shown, and not sent
    secret_file: str = ""  # key of signatures in the folder: whsec_ and base64 (Standard Webhooks)
    ca_file: str = ""  # PEM of trusted authorities, in the folder; "": the system's
    timeout_s: float = 15.0  # for the receiver to answer
    evaluate_every_s: ClassVar[float] = 15.0  # period at which the leader evaluates alerts
    settle_s: ClassVar[float] = 15.0  # rows newer than this wait for the next tick; replicas' clocks may differ by it
    error_min_sample: ClassVar[int] = 100  # requests of a sample; a slot with fewer is not evaluated yet
    temperature_margin_c: ClassVar[float] = 5.0  # the alert ends this far below the limit
    lasts_s: ClassVar[float] = 86_400.0  # an alert without a reading for this long is closed
    calm_s: ClassVar[float] = 120.0  # time below the limit before an alert is closed, so that it is not reported twice
    open_limit: ClassVar[int] = 10_000  # most alerts at one time; further ones are only counted
    device_limit: ClassVar[int] = 16  # most alerts of one device: a lying one must not hide others
    keep_limit_rows: ClassVar[int] = 100_000  # most closed alerts; the oldest are deleted first
    rows_limit: ClassVar[int] = 5_000  # telemetry rows of one page
    pages_limit: ClassVar[int] = 20  # pages of one tick; the rest waits for the next
    samples_limit: ClassVar[int] = 100_000  # devices whose counters are kept; the longest silent are discarded first
    retry_s: ClassVar[float] = 5.0  # longest pause after the first failure; doubles; drawn from 0 to it
    retry_limit_s: ClassVar[float] = 3_600.0  # longest pause
    give_up_s: ClassVar[float] = 259_200.0  # 3 d: age at which an undelivered message is dropped and counted
    refusals_limit: ClassVar[int] = 5  # refusals (4xx) of one message after which it is dropped
    batch_rows: ClassVar[int] = 100  # messages read at once

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_url(self.url, "alerts")


@dataclass(frozen=True, slots=True)
class WakeBrokerSettings:
    """Table `[wake]`: a broker for hints to devices that they should poll now. Nothing else is published there."""

    url: str = ""  # mqtt://HOST:PORT or mqtts://HOST:PORT; empty: devices poll periodically only
    topic: str = "edge-fleet/{device}/wake"  # topic that the device subscribes to
    user: str = ""  # for brokers that require a user name
    password_file: str = ""  # its first line is the password; in the folder, like the files below
    ca_file: str = ""  # PEM; empty: the system's authorities
    certificate_file: str = ""  # PEM, for brokers that require one
    key_file: str = ""  # PEM; empty: in certificate_file
    per_s: int = 200  # devices woken in a second: each of them polls
    keepalive_s: ClassVar[int] = 60  # longest time without a packet
    retry_limit_s: ClassVar[float] = 60.0  # longest pause between attempts to reach the broker

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_above_zero(self, "wake", "per_s")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Table `[metrics]`: the page of /metrics."""

    own_every_s: float = 60.0  # period at which the controller's own metrics go to [otlp]
    cache_s: ClassVar[float] = 30.0  # greatest age of values that the database counts


@dataclass(frozen=True, slots=True)
class OtlpSettings:
    """Table `[otlp]`: an OTLP/HTTP endpoint. Data that cannot be sent are dropped and counted, never sent twice."""

    url: str = ""  # such as http://collector:4318; /v1/metrics and /v1/logs are appended; "": nothing is sent
    headers_file: str = ""  # one header per line ("Authorization: Bearer …"), in the folder
    ca_file: str = ""  # PEM of trusted authorities, in the folder; "": the system's
    timeout_s: float = 10.0  # for the endpoint to answer
    queue_limit_bytes: ClassVar[int] = 33_554_432  # 32 MiB: requests that wait; further ones are dropped
    request_limit_bytes: ClassVar[int] = 4_194_304  # 4 MiB: one request, before compression
    names_limit: ClassVar[int] = 128  # models, zones and the like of one device in a day: each is a time series there
    attempts: ClassVar[int] = 5  # attempts of one request, if the endpoint took nothing
    retry_s: ClassVar[float] = 1.0  # longest pause after the first failure; doubles; drawn from 0 to it
    retry_limit_s: ClassVar[float] = 60.0  # longest pause, even if the endpoint asks for more

    def __post_init__(self) -> None:
        """Check the values. Raise ConfigurationError."""
        check_url(self.url, "otlp")


def check_url(url: str, table: str) -> None:
    """Check that `url` is "" or an HTTP URL without user and password. Raise ConfigurationError."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fits = False
    if url and (not fits or parts.username is not None or parts.fragment):
        raise ConfigurationError("must be http://host… or https://host…, without a password", table=table, key="url")
