"""Clocks of this machine: the system clock, its synchronisation state, and the time since boot."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from gateway.common.terminal.kernel_clock import clock_synchronised
from gateway.common.trust.clock import BootClock

BOOT_FILE, BOOT_VARIABLE = Path("/proc/sys/kernel/random/boot_id"), "BOOT_ID"
"""Sources of the boot id. The service cannot read the file; its unit sets the variable."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Snapshot of all clocks. `boot` is None if the boot id is unknown."""

    system: datetime
    synchronised: bool
    boot: BootClock | None


def read_clocks() -> Clocks:
    """Read all clocks."""
    boot = boot_name()
    since_boot = BootClock(boot, time.clock_gettime(time.CLOCK_BOOTTIME)) if boot else None
    return Clocks(system_now(), synchronised(), since_boot)


def boot_name() -> str:
    """Return the boot id, or "" if it is unknown."""
    named = os.environ.get(BOOT_VARIABLE, "")
    return named or (BOOT_FILE.read_text("ascii").strip() if BOOT_FILE.is_file() else "")


def system_now() -> datetime:
    """Return the system clock's time in UTC, in whole seconds as in signed metadata."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def synchronised() -> bool:
    """Return True if the kernel reports that the clock is synchronised (NTP, PTP, GNSS)."""
    return clock_synchronised() is True
