"""What this machine knows of the time: the system's clock, and whether the kernel vouches for it."""

from __future__ import annotations

import ctypes
from datetime import UTC, datetime

TIME_ERROR = 5
"""adjtimex(2): the clock is not synchronised."""
_TIMEX_BYTES = 512
"""More than struct timex takes on any architecture; all zero asks and changes nothing."""


def system_now() -> datetime:
    """The system's clock, in UTC, whole seconds (as signed metadata has them)."""
    return datetime.now(UTC).replace(microsecond=0)


def synchronised() -> bool:
    """Whether the kernel says that something (NTP, PTP, GNSS) keeps the clock right."""
    library = ctypes.CDLL(None, use_errno=True)
    state = int(library.adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
    return state not in {-1, TIME_ERROR}
