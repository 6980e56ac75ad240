"""`edge-software serve`: run the process of edge-software.service."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.common.logs import configure_logging
from gateway.common.notify import Notifier
from gateway.device.installer.cli.common import errors_with_exit_codes, home, records
from gateway.device.installer.commands import Units
from gateway.device.installer.server import InstallerServer, activated
from gateway.device.installer.settings import load_config
from gateway.device.installer.worker import InstallerWorker


def command(arguments: argparse.Namespace) -> int:
    """Serve requests until nothing is left to do."""
    config = load_config(Path(arguments.config) if arguments.config else None)
    configure_logging(config.log)
    notifier, settings = Notifier.from_environment(os.environ), config.software
    units = Units(settings.unit_timeout_s, notifier.watchdog)
    worker = InstallerWorker(home(), records(arguments), units, settings, alive=notifier.watchdog)
    with errors_with_exit_codes(), activated(os.environ) as listener:
        InstallerServer(listener, worker, settings, notifier).run()
    return 0
