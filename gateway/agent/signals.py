"""Signals that the agent listens to, parent and child alike, and how they are kept from coming at the wrong moment."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGINT)
NUMBERS = (*STOPS, signal.SIGHUP)
"""The last one asks the fleet at once."""
_Handler = Callable[[int, Any], Any] | int | None


class Alarm:
    """A threading.Event that a signal handler may set: it has no lock, which the thread that is interrupted may hold.
    `select` takes it, too."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, to be read while it is set."""
        return self._descriptor

    def set(self) -> None:
        """End all waits, until it is cleared."""
        os.eventfd_write(self._descriptor, 1)

    def clear(self) -> None:
        """As if it had never been set."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def is_set(self) -> bool:
        """Whether it was set, and not cleared since."""
        return self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Until it is set, or so long; whether it is set."""
        return bool(select.select([self], [], [], timeout_s)[0])


@contextmanager
def held_back() -> Iterator[None]:
    """They, and the timer's, come when the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*NUMBERS, signal.SIGALRM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """A stop ends the process in the kernel, whatever it is doing: Python hears of no signal before a name is resolved,
    and the C library may ask for minutes. For what has nothing to put in order."""
    kept = _handled_by([signal.SIG_DFL] * len(STOPS))
    try:
        yield
    finally:
        _handled_by(kept)


def _handled_by(handlers: Sequence[_Handler]) -> Sequence[_Handler]:
    """Those before. A signal between two handlers would be lost."""
    with held_back():
        return [signal.signal(number, handler) for number, handler in zip(STOPS, handlers, strict=True)]
