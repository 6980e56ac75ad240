"""`edge-agent` without name resolution: `python -m tests.simulators.slow_names MARK ARGUMENT…`.

It blocks like getaddrinfo(3) with servers that do not answer: in C, where no Python signal handler runs before it
returns. It creates the file `MARK` when a name is looked up.
"""

from __future__ import annotations

import ctypes
import socket
import sys
from pathlib import Path
from typing import NoReturn

from gateway.device.agent.cli import main


def resolve(*_arguments: object, **_keywords: object) -> NoReturn:
    """Block on a mutex that this thread already holds; no signal interrupts that."""
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    Path(sys.argv[1]).touch()
    library.pthread_mutex_lock(mutex)
    raise AssertionError


if __name__ == "__main__":
    socket.getaddrinfo = resolve
    sys.exit(main(sys.argv[2:]))
