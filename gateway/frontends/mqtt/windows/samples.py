"""Samples of a sensor as they pass from the decoder to a window."""

from __future__ import annotations

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
