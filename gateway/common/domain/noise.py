"""Noise of a machine: what other programs and the hypervisor took from a measurement. Pure functions.

Sources: proc_stat(5), proc_loadavg(5), Linux Documentation/scheduler/sched-stats.rst.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

AGREEMENT = 0.10
"""Share of a run's time that waiting for a processor may take before its figures count as disturbed."""
STEAL_SHARE = 0.05
"""The same for the time that the hypervisor takes from all processors."""
STEAL_FIELD = 8
"""Place of `steal` in the first line of /proc/stat."""


@dataclass(frozen=True, slots=True)
class NoiseSnapshot:
    """Counters of the machine and of this process at one time. `runnable`: other tasks that wanted a processor."""

    at_ns: int = 0
    steal_ns: int = 0
    waited_ns: int = 0
    switches: int = 0
    runnable: int = 0


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a measurement. All zero: not known.

    `load`: other tasks that wanted a processor. `steal`: share of all processors' time that the hypervisor took.
    `waited`: share of a run's time that it waited for a processor. `switches`: involuntary context switches of the
    process. `mhz`: frequency of the first processor at the end.
    """

    load: float = 0.0
    steal: float = 0.0
    waited: float = 0.0
    switches: int = 0
    mhz: int = 0


def read_steal_ns(text: str, ticks_per_s: int) -> int:
    """Return the time that the hypervisor took, from the text of /proc/stat; 0 if it does not tell."""
    fields = text.partition("\n")[0].split()
    return int(fields[STEAL_FIELD]) * 1_000_000_000 // ticks_per_s if len(fields) > STEAL_FIELD else 0


def busy_share(first: str, last: str) -> float:
    """Return the share of all cores' time that was not idle between two texts of /proc/stat (proc(5)); 0: not known.

    Stolen time and the wait for the disk are not idle.
    """
    try:
        before, after = ([int(field) for field in text.partition("\n")[0].split()[1:9]] for text in (first, last))
        passed = [end - begin for begin, end in zip(before, after, strict=True)]
        return 1.0 - passed[3] / sum(passed)
    except (ValueError, IndexError, ZeroDivisionError):
        return 0.0


def conditions(first: NoiseSnapshot, last: NoiseSnapshot, waited: float, cores: int, mhz: int = 0) -> Conditions:
    """Return the conditions between two snapshots of a machine with `cores` processors."""
    steal = (last.steal_ns - first.steal_ns) / max(1, (last.at_ns - first.at_ns) * cores)
    load = (first.runnable + last.runnable) / 2
    return Conditions(load, round(steal, 3), round(waited, 2), last.switches - first.switches, mhz)


def disturbance(found: Conditions, cores: int) -> str:
    """Return the conditions in words if they make figures unreliable, or ""."""
    if found.waited < AGREEMENT and found.steal < STEAL_SHARE and found.load < cores:
        return ""
    return f"load {found.load:g}, steal {found.steal:.0%}, waited {found.waited:.0%} of a run for a processor"


def quiet_ns(walls_ns: Sequence[int], cpus_ns: Sequence[int], first: NoiseSnapshot, last: NoiseSnapshot) -> float:
    """Return the time of a run of one thread without other programs: its CPU time, and what else it waited for.

    The median of the CPU times, because some runs are cold. What remains of the wall time after the time without a
    processor is waiting of the model's own; it is never more than the median of the wall times.
    """
    lost_ns = last.waited_ns - first.waited_ns + last.steal_ns - first.steal_ns
    own_ns = max(0, sum(walls_ns) - sum(cpus_ns) - lost_ns) / len(walls_ns)
    return min(median(walls_ns), median(cpus_ns) + own_ns)


def median(values: Sequence[int]) -> int:
    """Return the upper median."""
    return sorted(values)[len(values) // 2]
