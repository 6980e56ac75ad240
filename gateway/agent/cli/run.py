"""`edge-agent run`: keep the device in step until told to stop."""

from __future__ import annotations

import argparse

from gateway.agent.cli.common import configured, told
from gateway.agent.loop import Loop
from gateway.agent.storage import opened
from gateway.observe.logs import configure_logging


def command(arguments: argparse.Namespace) -> int:
    """Returns after SIGTERM."""
    config, folder = configured(arguments)
    configure_logging(config.log)
    with told(), opened(folder, config) as storage:
        Loop(storage, config).run()
    return 0
