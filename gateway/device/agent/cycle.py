"""One cycle of `edge-agent run`, in its own process: a poll, and work until nothing is left to do.

While an update is under way, further polls are made in this process when they are due. Its memory holds the results of
the probation; another process would have to begin the probation again.
"""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError, UnreachableError
from gateway.common.logs import configure_logging, get_logger
from gateway.common.store.errors import StoreError
from gateway.device.agent import events
from gateway.device.agent.config import AgentConfig
from gateway.device.agent.pauses import CycleResult, pause_s
from gateway.device.agent.report.reporting import Reporter
from gateway.device.agent.signals import NUMBERS, Alarm
from gateway.device.agent.state.polled import SUSPENDED
from gateway.device.agent.state.storage import opened
from gateway.device.agent.update.work import Agent


def run_cycle(folder: Path, config: AgentConfig, failures: int, chance: float) -> CycleResult | None:
    """Run a cycle. Return how long to sleep after it; None if the store is not usable (an operator must repair it).

    `chance`: as for `pauses.pause_s`. `failures`: failed polls in a row before.
    """
    configure_logging(config.log)
    signals = _Signals()
    try:
        with opened(folder, config) as storage:
            agent = Agent(storage, config)
            reporter = Reporter(folder, config, agent.identity, agent.connections)
            turned, goes_on = _asked(agent, config, reporter, signals.event, failures=failures, chance=chance)
            while goes_on and not signals.stopping:
                signals.again()
                failures = failures + 1 if turned.failed else 0
                chance = random.SystemRandom().random()
                turned, goes_on = _asked(agent, config, reporter, signals.event, failures=failures, chance=chance)
            reporter.close(config.telemetry.deadline_s, lambda: signals.stopping)
            return turned
    except UnreachableError as error:  # edge-agent sync is running
        get_logger("agent").warning(events.CYCLE_POSTPONED, problem=str(error))
        return CycleResult(config.agent.retry_s, failed=True)
    except (ConfigurationError, StoreError) as error:
        get_logger("agent").error(events.CYCLE_FAILED, problem=str(error))
        return None


def _asked(
    agent: Agent, config: AgentConfig, reporter: Reporter, interrupt: Alarm, *, failures: int, chance: float
) -> tuple[CycleResult, bool]:
    """Poll once and work until the next poll is due. Return the result, and whether work is left."""
    polled = agent.poll()
    reporter.tell()
    failed = bool(polled.problem) and polled.reason != SUSPENDED
    asked_s = polled.assignment.poll_s if polled.assignment else agent.identity.poll_s
    whole_s = pause_s(config.agent, asked_s, failures + 1 if failed else 0, polled.retry_after_s, chance)
    until_s = time.monotonic() + whole_s
    waiting = agent.work(interrupt, until_s)
    left_s = max(0.0, until_s - time.monotonic())
    if waiting and not failed:
        left_s = min(left_s, config.agent.retry_s)
    get_logger("agent").info(events.POLL_SCHEDULED, in_s=round(left_s, 1))
    return CycleResult(0.0 if interrupt.is_set() else left_s, failed=failed), agent.goes_on(waiting)


class _Signals:
    """Signal handlers. Each signal sets `event`; the step under way finishes first. SIGHUP does not end the cycle."""

    def __init__(self) -> None:
        self.event = Alarm()
        self.stopping = False
        for number in NUMBERS:
            signal.signal(number, self._came)
        # the parent forks with signals blocked, so that none is lost
        signal.pthread_sigmask(signal.SIG_UNBLOCK, NUMBERS)

    def again(self) -> None:
        """Prepare for the next signal. A stop stays in effect."""
        self.event.clear()
        if self.stopping:
            self.event.set()

    def _came(self, number: int, _frame: object) -> None:
        self.stopping = self.stopping or number != signal.SIGHUP
        self.event.set()
