"""`edge-agent run`: asks, works, sleeps, until it is told to stop. Nothing ticks; a stop is safe at any moment.

Each question, and the work that follows from it, is done by a child that ends with it: what sleeps between two of them
holds 20 MiB instead of 67 (`python -m tests.performance.poll`), and nothing that a server sent stays in its memory.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.agent.config import AgentConfig
from gateway.agent.pauses import Turned

if TYPE_CHECKING:
    from gateway.agent.wake import Wake

NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that parent and child listen to."""
ANSWER_LIMIT_BYTES = 4096
"""What a child tells its parent fits into a pipe, whether it is read or not."""
FAILED = 1


class Loop:
    """SIGTERM and SIGINT end it, SIGHUP asks at once."""

    def __init__(self, folder: Path, config: AgentConfig) -> None:
        self._folder, self._config = folder, config
        self._interrupt = threading.Event()
        self._child = 0
        self._failures = 0
        self._stopping = False
        self._chance = random.SystemRandom().random
        self._wake = self._listener() if config.wake.url else None

    def run(self) -> int:
        """Returns an exit code once it was told to stop, or the store cannot be used."""
        for number in NUMBERS:
            signal.signal(number, self._signalled)
        while not self._stopping:
            self._interrupt.clear()
            turned = self._turn()
            if turned is None:
                return FAILED
            self._failures = self._failures + 1 if turned.failed else 0
            self._sleep(turned)
        return 0

    def _listener(self) -> Wake:
        from gateway.agent.wake import Wake  # TLS takes 7 MB of what sleeps

        return Wake(self._config, self._folder, self._chance)

    def _sleep(self, turned: Turned) -> None:
        """Until the next question is due, a signal came, or, where the last one was answered, the fleet hints at it."""
        if self._wake is None:
            self._interrupt.wait(turned.pause_s)
        elif not self._interrupt.is_set():
            self._wake.sleep(turned.pause_s, heeds_hints=not turned.failed)

    def _turn(self) -> Turned | None:
        """One question, and what follows from it; None where the child could not say how it ended."""
        with _blocked():  # a signal that comes now waits until parent and child can hear it
            if self._stopping:
                return Turned(0.0, failed=False)
            reading, writing = os.pipe()
            self._child = os.fork()
            if self._child == 0:
                os.close(reading)
                os._exit(self._in_child(writing))
        os.close(writing)
        with open(reading, "rb") as stream:  # noqa: PTH123  a descriptor
            answer = stream.read(ANSWER_LIMIT_BYTES)
        with _blocked():
            os.waitpid(self._child, 0)
            self._child = 0
        if not answer and not self._stopping:
            return None
        return Turned(**json.loads(answer)) if answer else Turned(0.0, failed=False)

    def _in_child(self, writing: int) -> int:
        from gateway.agent.turn import turn

        turned = turn(self._folder, self._config, self._failures, self._chance())
        if turned is None:
            return FAILED
        os.write(writing, json.dumps(asdict(turned)).encode())
        return 0

    def _signalled(self, number: int, _frame: object) -> None:
        self._stopping = self._stopping or number != signal.SIGHUP
        self._interrupt.set()
        if self._wake:
            self._wake.interrupt()
        if self._child:
            os.kill(self._child, number)


@contextmanager
def _blocked() -> Iterator[None]:
    """Signals wait until the block has ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
