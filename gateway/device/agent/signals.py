"""Signals of the agent, in parent and child, and ways to delay them."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGINT)
NUMBERS = (*STOPS, signal.SIGHUP)
"""Signals that are handled. SIGHUP starts a poll at once."""
_Handler = Callable[[int, Any], Any] | int | None


class Alarm:
    """Event that a signal handler may set: unlike threading.Event it has no lock. Works with `select`."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        """Return the descriptor, which is readable while the alarm is set."""
        return self._descriptor

    def set(self) -> None:
        """End all waits until `clear`."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """Reset the alarm."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def is_set(self) -> bool:
        """Return True if the alarm is set."""
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` until the alarm is set. Return True if it is set."""
        return bool(select.select([self], [], [], timeout_s)[0])


@contextmanager
def held_back() -> Iterator[None]:
    """Delay the handled signals and the timer's until the block ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*NUMBERS, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let a stop signal end the process in the kernel, whatever it is doing.

    Python handles no signal during a name lookup, and the C library may take minutes for one. Use this only around work
    that leaves nothing to clean up.
    """
    kept = _handled_by([signal.SIG_DFL] * len(STOPS))
    try:
        yield
    finally:
        _handled_by(kept)


def _handled_by(handlers: Sequence[_Handler]) -> Sequence[_Handler]:
    """Install handlers and return the previous ones. A signal between two of them would be lost, so all are delayed."""
    with held_back():
        return [signal.signal(number, handler) for number, handler in zip(STOPS, handlers, strict=True)]
