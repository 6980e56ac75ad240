"""`edge-agent run`: keep the device in step until told to stop."""

from __future__ import annotations

import argparse

from gateway.agent.cli.common import configured
from gateway.agent.config import check_bootstrapped
from gateway.agent.loop import Loop


def command(arguments: argparse.Namespace) -> int:
    """Returns after SIGTERM; 1 where the store cannot be used, which the log tells."""
    config, folder = configured(arguments)
    check_bootstrapped(folder)
    return Loop(folder, config).run()
