"""Reading of the machine's noise from the kernel. What the kernel does not tell counts as none."""

from __future__ import annotations

import os
import resource
import time
from contextlib import suppress
from pathlib import Path

from gateway.common.domain.noise import Conditions, NoiseSnapshot, conditions, disturbance, read_steal_ns

STAT, LOAD, THREADS = Path("/proc/stat"), Path("/proc/loadavg"), Path("/proc/self/task")
FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
SWITCH_NS = 1_000_000
"""Least time that an involuntary context switch gives to another thread: about a slice of the kernel's scheduler."""
CORES = os.cpu_count() or 1


def stat() -> str:
    """Return the text of /proc/stat, or ""."""
    return _text(STAT)


def steal_ns() -> int:
    """Return the time that the hypervisor has taken since boot, summed over all processors."""
    return read_steal_ns(stat(), os.sysconf("SC_CLK_TCK"))


def thread_noise_ns() -> int:
    """Return the time that the machine has taken from the calling thread, estimated; only differences mean something.

    It is the hypervisor's time and, for each involuntary context switch of the thread, SWITCH_NS.
    """
    return steal_ns() + resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw * SWITCH_NS


def snapshot() -> NoiseSnapshot:
    """Return the counters as of now."""
    waited = [_text(thread / "schedstat").split() for thread in THREADS.iterdir()] if THREADS.is_dir() else []
    running = _text(LOAD).partition("/")[0].split()
    return NoiseSnapshot(
        time.monotonic_ns(),
        steal_ns(),
        sum(int(fields[1]) for fields in waited if len(fields) > 1),
        resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        max(0, int(running[-1]) - 1) if running else 0,
    )


def conditions_since(first: NoiseSnapshot, waited: float = 0.0) -> tuple[Conditions, str]:
    """Return the conditions since a snapshot, and in words what made figures unreliable ("": nothing)."""
    frequency = _text(FREQUENCY).strip()
    found = conditions(first, snapshot(), waited, CORES, int(frequency) // 1000 if frequency.isdecimal() else 0)
    return found, disturbance(found, CORES)


def _text(file: Path) -> str:
    with suppress(OSError):
        return file.read_text()
    return ""
