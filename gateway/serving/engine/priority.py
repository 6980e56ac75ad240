"""Nice values of threads: Linux keeps one per thread, and a thread's children inherit it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


LAST = 19
"""Nice value with the lowest priority (nice(2))."""


def step_back(nice: int, thread: threading.Thread | None = None) -> str:
    """Add to the nice value of `thread`, else of the calling thread. Return why the kernel refused, or ""."""
    number = (thread or threading.current_thread()).native_id or 0
    try:
        os.setpriority(os.PRIO_PROCESS, number, min(LAST, os.getpriority(os.PRIO_PROCESS, number) + nice))
    except OSError as error:  # a sandbox
        return str(error)
    return ""


def stepped_back(nice: int, call: Callable[[], T]) -> T:
    """Add to the calling thread's nice value permanently, then call. Threads that the call starts inherit it."""
    if nice:
        step_back(nice)
    return call()
