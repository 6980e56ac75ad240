"""Alternate signal stack of a thread (sigaltstack(2)), which libraries replace when they are loaded.

OpenVINO's CPU plugin (2026.4) leaves 20 KiB to the thread that loads it. If a CPU has AMX, a signal's frame takes
11 KiB: if two arrive together, such as SIGTERM and SIGCHLD, the second does not fit, and Linux ends the process
("overflowed sigaltstack"). Python's handlers (SA_ONSTACK) run there; the thread's own stack has enough space for them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


class SignalStack(ctypes.Structure):
    """Struct `stack_t` of Linux."""

    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


@contextmanager
def signal_stack_kept() -> Iterator[None]:
    """Restore this thread's signal stack after a library was loaded."""
    sigaltstack, before = ctypes.CDLL(None).sigaltstack, SignalStack()
    sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        sigaltstack(ctypes.byref(before), None)
