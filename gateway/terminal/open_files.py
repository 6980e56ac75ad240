"""How many files this process may have open: sockets are files, and a shell allows 1,024 where nobody asks for more."""

from __future__ import annotations

import resource


def allow_open_files(wanted: int) -> int:
    """Allow so many, as far as the hard limit goes; `wanted`, or how many it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed
