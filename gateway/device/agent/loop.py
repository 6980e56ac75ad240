"""`edge-agent run`: poll, work, sleep until stopped. There is no periodic timer.

A stop is safe at any time. Work that does not end by itself (a silent server, a slow name lookup, a load of minutes) is
killed.

Each poll, and the work that follows from it, runs in a child process. The sleeping parent thus holds 20 MiB instead of
67 (`python -m tests.performance.poll`), and no data of a server stays in its memory.
"""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.device.agent.config import AgentConfig
from gateway.device.agent.pauses import CycleResult
from gateway.device.agent.signals import NUMBERS, Alarm, ending_at_once, held_back

if TYPE_CHECKING:
    from gateway.device.agent.fetch.wake_hints import Wake

ANSWER_LIMIT_BYTES = 4096
"""Limit of a child's result; it fits into a pipe even before it is read."""
FAILED = 1
SHORTEST_S = 0.001
"""Shortest timer. A timer of 0 would never expire."""


class Loop:
    """Loop of `edge-agent run`. SIGTERM and SIGINT stop it, SIGHUP polls at once."""

    def __init__(self, folder: Path, config: AgentConfig) -> None:
        self._folder, self._config = folder, config
        self._interrupt = Alarm()
        self._child = 0
        self._failures = 0
        self._stopping, self._asleep = False, False
        self._chance = random.SystemRandom().random
        self._wake = self._listener() if config.wake.url else None

    def run(self) -> int:
        """Run until stopped or the store is not usable. Return an exit code."""
        for number in NUMBERS:
            signal.signal(number, self._signalled)
        signal.signal(signal.SIGALRM, self._late)
        while not self._stopping:
            self._interrupt.clear()
            turned = self._cycle()
            if turned is None:
                return FAILED
            self._failures = self._failures + 1 if turned.failed else 0
            self._sleep(turned)
        return 0

    def _listener(self) -> Wake:
        from gateway.device.agent.fetch.wake_hints import Wake  # TLS would add 7 MB to the sleeping parent

        return Wake(self._config, self._folder, self._chance, self._interrupt, connecting=ending_at_once)

    def _sleep(self, turned: CycleResult) -> None:
        """Sleep until the next poll is due or a signal comes; after a successful poll also until a wake hint."""
        if self._wake is None:
            self._interrupt.wait(turned.pause_s)
        else:
            self._asleep = True
            self._wake.sleep(turned.pause_s, heeds_hints=not turned.failed)
            self._asleep = False

    def _cycle(self) -> CycleResult | None:
        """Run one cycle in a child. Return None if the child failed to report its result."""
        with held_back():  # delays signals until parent and child can handle them
            if self._stopping:
                return CycleResult(0.0, failed=False)
            reading, writing = os.pipe()
            self._child = os.fork()
            if self._child == 0:
                os.close(reading)
                os._exit(self._in_child(writing))
        os.close(writing)
        with open(reading, "rb") as stream:  # noqa: PTH123  a descriptor
            answer = stream.read(ANSWER_LIMIT_BYTES)
        with held_back():
            signal.setitimer(signal.ITIMER_REAL, 0)
            os.waitpid(self._child, 0)
            self._child = 0
        if not answer and not self._stopping:
            return None
        return CycleResult(**json.loads(answer)) if answer else CycleResult(0.0, failed=False)

    def _in_child(self, writing: int) -> int:
        from gateway.device.agent.cycle import run_cycle

        turned = run_cycle(self._folder, self._config, self._failures, self._chance())
        if turned is None:
            return FAILED
        os.write(writing, json.dumps(asdict(turned)).encode())
        return 0

    def _signalled(self, number: int, _frame: object) -> None:
        self._stopping = self._stopping or number != signal.SIGHUP
        self._interrupt.set()
        if self._child:
            os.kill(self._child, number)
        if self._child and self._stopping:
            signal.setitimer(signal.ITIMER_REAL, max(SHORTEST_S, self._config.agent.stop_s))
        elif self._stopping and self._asleep:  # a broker may keep a read waiting
            self._asleep = False
            raise SystemExit(0)

    def _late(self, _number: int, _frame: object) -> None:
        """Kill a child that did not end in time."""
        from gateway.common.logs import configure_logging, get_logger  # the sleeping parent does not log
        from gateway.device.agent import events

        if self._child:
            os.kill(self._child, signal.SIGKILL)
            configure_logging(self._config.log)
            get_logger("agent").info(events.CYCLE_ABORTED, then="the next start continues from here")
