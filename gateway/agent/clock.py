"""Clocks of this machine: the system's, whether the kernel vouches for it, and the one that runs since boot."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gateway.terminal.kernel_clock import clock_synchronised
from gateway.trust.clock import BootClock

BOOT_FILE, BOOT_VARIABLE = Path("/proc/sys/kernel/random/boot_id"), "BOOT_ID"
"""What names this boot of the machine; the service does not see the file, its unit sets the variable."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading of all clocks. `boot` None: nothing names this boot."""

    system: datetime
    synchronised: bool
    boot: BootClock | None


def read_clocks() -> Clocks:
    """Read all clocks."""
    boot = boot_name()
    since_boot = BootClock(boot, time.clock_gettime(time.CLOCK_BOOTTIME)) if boot else None
    return Clocks(system_now(), synchronised(), since_boot)


def boot_name() -> str:
    """Return what names this boot; "" where nothing does."""
    named = os.environ.get(BOOT_VARIABLE, "")
    return named or (BOOT_FILE.read_text("ascii").strip() if BOOT_FILE.is_file() else "")


def system_now() -> datetime:
    """The system's clock, in UTC, whole seconds (as signed metadata has them)."""
    return datetime.now(UTC).replace(microsecond=0)


def synchronised() -> bool:
    """Whether the kernel says that something (NTP, PTP, GNSS) keeps the clock right."""
    return clock_synchronised() is True
