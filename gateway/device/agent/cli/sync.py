"""`edge-agent sync`: poll once and carry out what is assigned."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.common.domain.errors import ConfigurationError
from gateway.common.logs import configure_logging
from gateway.common.terminal.program import FINDING, OK, UNREACHABLE
from gateway.device.agent.cli.common import Bar, complain, configured, errors_with_exit_codes
from gateway.device.agent.cli.status import show
from gateway.device.agent.report.report import BEHIND, IN_STEP, REFUSED, read_standing
from gateway.device.agent.report.reporting import Reporter
from gateway.device.agent.signals import Alarm
from gateway.device.agent.state.storage import opened
from gateway.device.agent.update.work import Agent


def command(arguments: argparse.Namespace) -> int:
    """Return 0 if in step, 1 if something was refused or rolled back, 3 if something was not reachable."""
    config, folder = configured(arguments)
    configure_logging(config.log)
    carried = Path(arguments.source) if arguments.source else None
    if carried and not carried.is_dir():
        raise ConfigurationError("is no folder; --from takes a repository as published", file=arguments.source)
    with errors_with_exit_codes(), opened(folder, config) as storage, Bar() as bar:
        agent = Agent(storage, config, carried=carried, progress=bar)
        polled = agent.poll(retry=arguments.retry, thorough=True)
        agent.work(Alarm())
        if polled.problem:
            complain(polled.problem)
        reporter = Reporter(folder, config, agent.identity, agent.connections)
        state = show(read_standing(storage, agent.identity), as_json=arguments.json)
        reporter.close(config.telemetry.deadline_s)
    if state == IN_STEP:
        return OK
    return FINDING if state in {REFUSED, BEHIND} else UNREACHABLE
