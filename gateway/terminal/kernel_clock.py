"""What the kernel says of the system's clock."""

from __future__ import annotations

import ctypes

TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""
_TIMEX_BYTES = 512
"""More than struct timex takes on any architecture; all zero asks and changes nothing."""


def clock_synchronised() -> bool | None:
    """Return whether something (NTP, PTP, GNSS) keeps the clock right, or None where the kernel may not be asked."""
    library = ctypes.CDLL(None, use_errno=True)
    state = int(library.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return None if state < 0 else state != TIME_ERROR
