"""One turn of `edge-agent run`, in a process of its own: a question, and work until the next one is due."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

from gateway.agent.config import AgentConfig
from gateway.agent.pauses import Turned, pause_s
from gateway.agent.storage import opened
from gateway.agent.work import Agent
from gateway.domain.errors import ConfigurationError
from gateway.observe.logs import configure_logging, get_logger
from gateway.store.errors import StoreError


def turn(folder: Path, config: AgentConfig, failures: int, chance: float) -> Turned | None:
    """How long to sleep then; None where the store cannot be used, which only an operator can mend."""
    configure_logging(config.log)
    interrupt = _interrupted_by_signals()
    try:
        with opened(folder, config) as storage:
            return _turned(Agent(storage, config), config, interrupt, failures, chance)
    except (ConfigurationError, StoreError) as error:
        get_logger("agent").error("the agent cannot work", problem=str(error))
        return None


def _turned(agent: Agent, config: AgentConfig, interrupt: threading.Event, failures: int, chance: float) -> Turned:
    polled = agent.poll()
    failed = bool(polled.problem)
    asked_s = polled.assignment.poll_s if polled.assignment else None
    whole_s = pause_s(config.agent, asked_s, failures + 1 if failed else 0, polled.retry_after_s, chance)
    until_s = time.monotonic() + whole_s
    waiting = agent.work(interrupt, until_s)
    left_s = max(0.0, until_s - time.monotonic())
    if waiting and not failed:
        left_s = min(left_s, config.agent.retry_s)
    get_logger("agent").info("next question", in_s=round(left_s, 1))
    return Turned(0.0 if interrupt.is_set() else left_s, failed=failed)


def _interrupted_by_signals() -> threading.Event:
    """Set by the first of them: the step under way is finished, then the turn ends."""
    interrupt = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: interrupt.set())
    return interrupt
