"""State of the system's clock, as the kernel reports it."""

from __future__ import annotations

import ctypes

TIME_ERROR = 5
"""State of adjtimex(2): the clock is not synchronised."""
_TIMEX_BYTES = 512
"""Size of the buffer, larger than struct timex on any architecture. All zeros read the state and change nothing."""


def clock_synchronised() -> bool | None:
    """Return True if the clock is synchronised (NTP, PTP, GNSS), or None if the kernel denies the query."""
    library = ctypes.CDLL(None, use_errno=True)
    state = int(library.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state != TIME_ERROR
