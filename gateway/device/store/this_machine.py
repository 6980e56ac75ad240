"""Facts of this device that decide which wheels it can install."""

from __future__ import annotations

import platform
import sys

from gateway.common.domain.software_release import Machine


def this_machine() -> Machine:
    """Return machine, Python and C library of this process."""
    name, version = platform.libc_ver()
    return Machine(platform.machine(), f"3.{sys.version_info.minor}", version if name == "glibc" else "")
