"""Settings of samples: where their time is in a payload, late and missing ones, joins by time, and session windows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timezone, tzinfo
from typing import ClassVar

from gateway.common.domain.errors import ConfigurationError
from gateway.serving.frontends.mqtt.settings.paths import check_path

TABLE = "mqtt.route.time"
UNITS_NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Units of numeric timestamps since the Unix epoch, in nanoseconds."""
JOINS = ("last", "nearest", "linear")
GAPS = ("mark", "reset", "fill_last", "fill_linear")


@dataclass(frozen=True, slots=True)
class MqttTime:
    """Settings of one `[mqtt.route.time]`."""

    path: str = ""
    """JMESPath of the timestamp in a row: a number since the Unix epoch, or ISO 8601; empty: the time of arrival."""
    unit: str = "s"
    """Unit of numeric timestamps: s, ms, us or ns."""
    zone: str = "UTC"
    """Time zone of timestamps that do not name one, such as Europe/Berlin."""
    sequence: str = ""
    """JMESPath of the sequence number in a row, which grows by 1 with each sample of a sensor; empty: there is none."""
    sequence_modulus: int = 0
    """Number at which sequence numbers begin again at 0, such as 256 or 65536; 0: never."""
    interval_s: float = 0.0
    """Time between two samples of a sensor; 0: as the manifest's [window] says with rate_hz."""
    lateness_s: float = 0.0
    """Time for which samples wait for earlier ones that have not come. A sample that comes even later is dropped."""
    gap: str = "mark"
    """Treatment of missing samples: mark (the result tells their number), reset, fill_last or fill_linear."""
    fill_limit_rows: int = 100
    """Missing samples that fill_last and fill_linear insert; a longer gap begins another window."""
    resample: bool = False
    """Make samples at exactly `interval_s` by linear interpolation, for sensors whose rate is not the model's."""
    max_pending_rows: int = 256
    """Samples of one sensor that wait for earlier ones; beyond it the earlier ones are given up."""
    join: str = "last"
    """Rows of channels that come in messages of their own: last, nearest or linear.

    last: each message is a row, which `missing = "last"` completes in the order of arrival. nearest: a channel has the
    value of its sample whose time is nearest to the row's. linear: the value between the samples before and after.
    """
    join_tolerance_s: float = 0.0
    """Greatest distance between the time of a row and that of a sample whose value it takes; at most `lateness_s`."""
    join_lead: str = ""
    """Path or name of the channel whose samples have a row each; empty: the first one, or `resample` has the times."""
    future_limit_s: ClassVar[float] = 3_600.0
    """Time after its arrival beyond which the timestamp of a sample is refused: its clock is wrong."""
    restart_s: ClassVar[float] = 60.0
    """Time by which a sample must be older than the last one to mean that the sensor's clock was set back."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route.time)."""
        for key in ("path", "sequence"):
            if getattr(self, key):
                check_path(getattr(self, key), key, TABLE)
        for key, wrong, rule in (
            ("unit", self.unit not in UNITS_NS, f"one of {', '.join(UNITS_NS)}"),
            ("zone", not _is_zone(self.zone), "a time zone of the system, such as UTC or Europe/Berlin"),
            ("gap", self.gap not in GAPS, f"one of {', '.join(GAPS)}"),
            ("sequence_modulus", self.sequence_modulus == 1, "0 or at least 2"),
            ("fill_limit_rows", not 1 <= self.fill_limit_rows <= 1_000_000, "1 to 1000000 rows"),
            ("max_pending_rows", not 1 <= self.max_pending_rows <= 100_000, "1 to 100000 rows"),
            ("resample", self.resample and not self.path, "set together with path: only timestamps tell the rate"),
            *self._join_rules(),
        ):
            if wrong:
                problem = f"must be {rule}, not {getattr(self, key)!r:.150}"
                raise ConfigurationError(problem, table=TABLE, key=key)

    def _join_rules(self) -> tuple[tuple[str, bool, str], ...]:
        joins, leads = self.joins, bool(self.join_lead)
        return (
            ("join", self.join not in JOINS, f"one of {', '.join(JOINS)}"),
            ("join", joins and not self.path, "set together with path: only timestamps tell what belongs together"),
            ("sequence", joins and bool(self.sequence), "absent: join puts samples in order by their times"),
            ("lateness_s", joins and not self.lateness_s, "more than 0: join waits for samples of other channels"),
            ("join_tolerance_s", not joins and self.join_tolerance_s > 0, "absent without join"),
            (
                "join_tolerance_s",
                self.join_tolerance_s > self.lateness_s,
                "at most lateness_s, which waits for samples",
            ),
            ("join_lead", leads and (self.resample or not joins), "absent unless join has no resample"),
        )

    @property
    def joins(self) -> bool:
        """Return True if rows are joined by time."""
        return self.join != JOINS[0]

    @property
    def is_set(self) -> bool:
        """Return True if samples have timestamps or sequence numbers."""
        return bool(self.path or self.sequence)


def zone_of(name: str) -> tzinfo:
    """Return a time zone. UTC needs no database of zones. Raises OSError or ValueError if there is no such zone."""
    if name == "UTC":
        return timezone.utc
    from zoneinfo import ZoneInfo

    return ZoneInfo(name)


def _is_zone(name: str) -> bool:
    try:
        zone_of(name)
    except (KeyError, OSError, ValueError):  # no such zone, a name that is a path, or no database of zones
        return False
    return True


SESSIONS = "mqtt.route.window"
PADS = ("zero", "first", "last")


@dataclass(frozen=True, slots=True)
class MqttWindow:
    """Settings of one `[mqtt.route.window]`."""

    session_gap_s: float = 0.0
    """Silence of a sensor that ends its window; 0: windows have a fixed number of rows.

    Silence is measured between the times of samples if they have any, else between their arrivals.
    """
    pad: str = ""
    """Rows that make a short window as long as the model takes.

    zero (before the first sample), first (the first sample again, before it) or last (the last one again, after it);
    empty: zero, or none if the model takes any number of rows.
    """
    least_rows: int = 1
    """Rows that a session has at least; a shorter one is dropped and counted."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work. Raises ConfigurationError (table mqtt.route.window)."""
        together = "absent without session_gap_s"
        for key, wrong, rule in (
            ("pad", self.pad not in {"", *PADS}, f"one of {', '.join(PADS)}"),
            ("pad", bool(self.pad) and not self.has_sessions, together),
            ("least_rows", not 1 <= self.least_rows <= 1_000_000, "1 to 1000000 rows"),
            ("least_rows", self.least_rows > 1 and not self.has_sessions, together),
        ):
            if wrong:
                raise ConfigurationError(f"must be {rule}, not {getattr(self, key)!r:.150}", table=SESSIONS, key=key)

    @property
    def has_sessions(self) -> bool:
        """Return True if windows end by silence."""
        return self.session_gap_s > 0
