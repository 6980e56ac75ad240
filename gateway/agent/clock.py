"""What this machine knows of the time: the system's clock, and whether the kernel vouches for it."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.terminal.kernel_clock import clock_synchronised


def system_now() -> datetime:
    """The system's clock, in UTC, whole seconds (as signed metadata has them)."""
    return datetime.now(UTC).replace(microsecond=0)


def synchronised() -> bool:
    """Whether the kernel says that something (NTP, PTP, GNSS) keeps the clock right."""
    return clock_synchronised() is True
