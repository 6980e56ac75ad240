"""Limit of the open files of this process. Sockets are files, and the usual soft limit of a shell is 1,024."""

from __future__ import annotations

import resource


def allow_open_files(wanted: int) -> int:
    """Raise the soft limit to `wanted`, at most to the hard limit. Return the resulting limit, at most `wanted`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
