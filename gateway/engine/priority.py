"""Threads that step behind the event loop. Linux keeps a nice value per thread, and a thread's children inherit it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def step_back(nice: int) -> str:
    """Give the calling thread this nice value; returns why the kernel refused ("": it did not)."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
    except OSError as error:  # a sandbox
        return str(error)
    return ""


def stepped_back(nice: int, call: Callable[[], T]) -> T:
    """Call in a thread of that nice value, so that threads which an engine starts now have it too."""
    if not nice:
        return call()
    with ThreadPoolExecutor(1, initializer=step_back, initargs=(nice,)) as thread:
        return thread.submit(call).result()
