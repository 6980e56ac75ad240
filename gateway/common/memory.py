"""Memory and cores that this process may use: of the machine, and of its control group."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

HERE = Path("/")


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
