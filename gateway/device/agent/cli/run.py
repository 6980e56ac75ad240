"""`edge-agent run`: keep the device in step until stopped."""

from __future__ import annotations

import argparse

from gateway.device.agent.cli.common import configured
from gateway.device.agent.config import check_bootstrapped
from gateway.device.agent.loop import Loop


def command(arguments: argparse.Namespace) -> int:
    """Run until SIGTERM. Return 1 if the store is not usable; the log has the reason."""
    config, folder = configured(arguments)
    check_bootstrapped(folder)
    return Loop(folder, config).run()
