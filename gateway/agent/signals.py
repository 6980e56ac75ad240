"""Signals that the agent listens to, parent and child alike, and how they are kept from coming at the wrong moment."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGTERM, signal.SIGINT)
NUMBERS = (*STOPS, signal.SIGHUP)
"""The last one asks the fleet at once."""
_Handler = Callable[[int, Any], Any] | int | None


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
