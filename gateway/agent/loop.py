"""`edge-agent run`: asks, works, sleeps, until it is told to stop. Nothing ticks; a stop is safe at any moment."""

from __future__ import annotations

import random
import signal
import threading
import time

from gateway.agent.config import AgentConfig
from gateway.agent.pauses import pause_s
from gateway.agent.storage import Storage
from gateway.agent.work import Agent, Polled
from gateway.observe.logs import get_logger


class Loop:
    """SIGTERM and SIGINT end it, SIGHUP asks at once."""

    def __init__(self, storage: Storage, config: AgentConfig) -> None:
        """Raises ConfigurationError."""
        self._agent, self._settings = Agent(storage, config), config.agent
        self._interrupt = threading.Event()
        self._stopping = False
        self._failures = 0
        self._chance = random.SystemRandom().random
        self._log = get_logger("agent")

    def run(self) -> None:
        """Returns once it was told to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._wake)
        while not self._stopping:
            self._interrupt.clear()
            self._once()
        self._log.info("stopped")

    def _once(self) -> None:
        polled = self._agent.poll()
        pause = self._pause_s(polled)
        until_s = time.monotonic() + pause
        self._log.info("next question", in_s=round(pause, 1))
        if self._agent.work(self._interrupt, until_s) and not polled.problem:
            until_s = min(until_s, time.monotonic() + self._settings.retry_s)
        self._interrupt.wait(max(0.0, until_s - time.monotonic()))

    def _pause_s(self, polled: Polled) -> float:
        self._failures = self._failures + 1 if polled.problem else 0
        asked_s = polled.assignment.poll_s if polled.assignment else None
        return pause_s(self._settings, asked_s, self._failures, polled.retry_after_s, self._chance())

    def _stop(self, _number: int, _frame: object) -> None:
        self._stopping = True
        self._interrupt.set()

    def _wake(self, _number: int, _frame: object) -> None:
        self._interrupt.set()
