"""Samples of a sensor as they pass from the decoder to a window, and the rules for their time. Values only."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]
Row = npt.NDArray[np.float32]
HeldValue = tuple[int, float]
"""Time and value of a channel's last sample."""


@dataclass(slots=True)
class Sample:
    """One row [channels] with its time (ns since the epoch), sequence number (None: none) and arrival (monotonic ns).

    `missing` counts the rows that did not come before this one; `restarts` begins the window again with this row.
    """

    row: Row
    time_ns: int
    arrived_ns: int
    sequence: int | None = None
    missing: int = 0
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class SensorState:
    """Content of a sensor's window outside its ring.

    `previous`: last sample. `next_ns`: time of the next row of a fixed rate. `waiting`: samples that wait for earlier
    ones. `joined`: last sample of each channel that passed, if rows are joined by time.
    """

    previous: Sample | None = None
    next_ns: int = 0
    waiting: tuple[Sample, ...] = ()
    joined: tuple[HeldValue | None, ...] = ()


GAP_FACTOR = 1.5
"""Distance between two samples, in intervals, beyond which samples are missing."""

RESAMPLE_LIMIT_ROWS = 10_000
"""Most rows that resampling makes between two samples; after a longer gap the window begins again."""
MISSING_LIMIT_ROWS = 2**31 - 1
"""Greatest number of missing rows that is counted: marks have 32 bits."""


class GapPolicy(enum.Enum):
    """Treatment of samples that did not come.

    MARK: windows continue and carry the number of missing rows. RESET: the window begins again after the gap. FILL_LAST
    and FILL_LINEAR insert rows, and mark them; a gap of more than `fill_limit_rows` resets.
    """

    MARK = "mark"
    RESET = "reset"
    FILL_LAST = "fill_last"
    FILL_LINEAR = "fill_linear"


@dataclass(frozen=True, slots=True)
class SessionRules:
    """Rules of session windows: a sensor's silence of more than `gap_ns` ends a window.

    A window of fewer than `least_rows` rows is dropped.
    """

    gap_ns: int
    least_rows: int = 1


@dataclass(frozen=True, slots=True)
class ChannelRules:
    """Value of a channel that has no sample near a row: its last one up to an age of `held_ns`, or `zero`, or none."""

    held_ns: int = 0
    zero: bool = False


@dataclass(frozen=True, slots=True)
class JoinRules:
    """Rules of one route.

    A row is made at each sample of the channel `lead`, or every `interval_ns` if that is not 0. A channel has the value
    of its nearest sample within `tolerance_ns`, or if `linear`, the value between its neighbours within it.
    """

    channels: tuple[ChannelRules, ...]
    lead: int
    tolerance_ns: int
    linear: bool = False
    interval_ns: int = 0


@dataclass(frozen=True, slots=True)
class SampleTiming:
    """Rules of one route.

    `interval_ns`: time between two samples (0: unknown, so that only sequence numbers show gaps). `lateness_ns`: how
    long later samples wait for missing ones. `resample`: make rows at exactly `interval_ns`, by linear interpolation.
    `modulus`: number at which sequence numbers begin again (0: never). `pending_limit_rows`: rows of one sensor that
    wait for missing ones. `event_time`: samples have times of their own, not those of their arrival. `restart_ns`: a
    sample that is older than the last one by more than this comes from a clock that was set back. `session`: None for
    windows of a fixed number of rows. `join`: None if each sample is a row.
    """

    interval_ns: int = 0
    lateness_ns: int = 0
    gap: GapPolicy = GapPolicy.MARK
    fill_limit_rows: int = 100
    resample: bool = False
    modulus: int = 0
    pending_limit_rows: int = 256
    event_time: bool = True
    restart_ns: int = 60_000_000_000
    session: SessionRules | None = None
    join: JoinRules | None = None
