"""Memory that this process may still use: of the machine, and of its control group."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

HERE = Path("/")


def group_limit_bytes(root: Path = HERE) -> int | None:
    """Return the least limit of this process's control groups (cgroups(7), version 2); None without a limit.

    systemd's MemoryMax= and the memory limit of a container are such limits.
    """
    with suppress(OSError, ValueError):
        (name,) = re.findall(r"^0::/(.*)$", (root / "proc/self/cgroup").read_text(), re.MULTILINE)
        groups = root / "sys/fs/cgroup"
        inner = groups / name
        files = (group / "memory.max" for group in (inner, *inner.parents) if group.is_relative_to(groups))
        limits = [file.read_text().strip() for file in files if file.exists()]  # the outermost group has none
        return min((int(limit) for limit in limits if limit != "max"), default=None)
    return None


def available_bytes(root: Path = HERE) -> int:
    """Return the memory available without swapping (proc(5), MemAvailable), at most the limit of the control group.

    It is 0 if the kernel does not report it.
    """
    with suppress(OSError):
        if found := re.search(r"^MemAvailable:\s+(\d+) kB$", (root / "proc/meminfo").read_text(), re.MULTILINE):
            return min(int(found[1]) * 1024, group_limit_bytes(root) or int(found[1]) * 1024)
    return 0
