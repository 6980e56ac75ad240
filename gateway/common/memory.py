"""Memory and cores that this process may use, of the machine and of its control group, and the memory that it has."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

HERE = Path("/")
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Options of mallopt(3): their numbers in malloc.h of the GNU C library."""
KEPT_BYTES = 4 * 1024 * 1024
"""A mapping for each frame of a camera (720p: 2.7 MB) would cost a millisecond of page faults."""


def group_limit_bytes(root: Path = HERE) -> int | None:
    """Return the least memory limit of this process's control groups (cgroups(7), version 2); None without a limit.

    systemd's MemoryMax= and the memory limit of a container are such limits.
    """
    return min((int(limit) for (limit,) in _group_limits(root, "memory.max")), default=None)


def usable_cores(root: Path = HERE) -> int:
    """Return the cores that this process may use at a time: its affinity, and the quota of its control groups.

    systemd's CPUQuota= and the CPU limit of a container are such quotas. A part of a core counts as one.
    """
    quotas = (-(-int(quota) // int(period)) for quota, period in _group_limits(root, "cpu.max"))
    return max(1, min([len(os.sched_getaffinity(0)), *quotas]))


def _group_limits(root: Path, name: str) -> list[list[str]]:
    """Return the words of each limit called `name` of this process's control groups, innermost first."""
    with suppress(OSError, ValueError):
        (group,) = re.findall(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
        groups = root / "sys/fs/cgroup"
        inner = groups / group
        files = (folder / name for folder in (inner, *inner.parents) if folder.is_relative_to(groups))
        limits = [file.read_text().split() for file in files if file.exists()]  # the outermost group has none
        return [limit for limit in limits if limit and limit[0] != "max" and all(map(str.isdecimal, limit))]
    return []


def available_bytes(root: Path = HERE) -> int:
    """Return the memory available without swapping (proc(5), MemAvailable), at most the limit of the control group.

    It is 0 if the kernel does not report it.
    """
    with suppress(OSError):
        if found := re.search(r"^MemAvailable:\s+(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE):
            return min(int(found[1]) * 1024, group_limit_bytes(root) or int(found[1]) * 1024)
    return 0


def trim() -> None:
    """Return malloc's unused memory to the system, in 4 ms (`python -m tests.performance.start`, last two lines)."""
    # With a model of 14 MiB: 33 of 145 MiB after the start, 104 of 232 MiB after three swaps of it.
    with suppress(AttributeError):  # a C library without it keeps less
        ctypes.CDLL(None).malloc_trim(0)


def bound_kept_memory() -> None:
    """Let malloc keep at most KEPT_BYTES at the end of each arena, and give larger blocks a mapping of their own.

    By itself, it raises both bounds with the blocks that are freed: weights of models would be kept (mallopt(3)).
    """
    with suppress(AttributeError):  # a C library without it has no such bounds
        for option in (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD):
            ctypes.CDLL(None).mallopt(option, KEPT_BYTES)


class _Mallinfo(ctypes.Structure):
    """Figures of mallinfo2(3)."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def used_bytes(root: Path = HERE) -> int:
    """Return the memory that this process uses: what malloc has lent, and mapped files, shared pages by their share.

    What malloc keeps is not used: it stays in the arenas of threads, where `malloc_trim` does not reach the last block,
    and is used for the next model. A C library without mallinfo2(3) counts it. Source: proc(5), smaps_rollup.
    """
    pss = dict.fromkeys(("Pss", "Pss_File", "Pss_Shmem"), 0)
    with suppress(OSError):
        rollup = (root / "proc/self/smaps_rollup").read_text()
        pss |= {name: int(kib) * 1024 for name, kib in re.findall(r"^(Pss\w*):\s+(\d+) kB$", rollup, re.MULTILINE)}
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return pss["Pss"]
    ask.restype = _Mallinfo
    lent = ask()
    return int(lent.uordblks + lent.hblkhd) + pss["Pss_File"] + pss["Pss_Shmem"]
