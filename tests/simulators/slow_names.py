"""`edge-agent` where no name is ever resolved: `python -m tests.simulators.slow_names MARK ARGUMENT…`.

As getaddrinfo(3) with servers that do not answer: in C, where no Python handler of a signal runs before it returns.
`MARK` is a file that is there once a name was asked for.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from pathlib import Path
from typing import NoReturn

from gateway.agent.cli import main


def resolve(*_arguments: object, **_keywords: object) -> NoReturn:
    """A mutex that its holder locks once more: no signal ends that."""
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    Path(sys.argv[1]).touch()
    library.pthread_mutex_lock(mutex)
    raise AssertionError


if __name__ == "__main__":
    socket.getaddrinfo = resolve
    sys.exit(main(sys.argv[2:]))
