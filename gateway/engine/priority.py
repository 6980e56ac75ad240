"""Threads that step behind the event loop. Linux keeps a nice value per thread, and a thread's children inherit it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


LAST = 19
"""The nice value that lets everything else run first (nice(2))."""


def step_back(nice: int, thread: threading.Thread | None = None) -> str:
    """Give a thread, else the calling one, this nice value; returns why the kernel refused ("": it did not)."""
    try:
        os.setpriority(os.PRIO_PROCESS, (thread or threading.current_thread()).native_id or 0, nice)
    except OSError as error:  # a sandbox
        return str(error)
    return ""


def stepped_back(nice: int, call: Callable[[], T]) -> T:
    """Step back with the calling thread, for good, so that threads which an engine starts now do so too; then call."""
    if nice:
        step_back(nice)
    return call()
