"""`edge-software serve`: run the process of edge-software.service."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from gateway.observe.logs import configure_logging
from gateway.observe.notify import Notifier
from gateway.software.cli.common import errors_with_exit_codes, home, records
from gateway.software.server import InstallerServer, activated
from gateway.software.settings import load_config
from gateway.software.units import Units
from gateway.software.worker import InstallerWorker


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
