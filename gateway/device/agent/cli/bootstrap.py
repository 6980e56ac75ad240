"""`edge-agent bootstrap DIR`: set the device's identity, pinned root and source of assignments."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.device.agent.cli.common import configured, errors_with_exit_codes
from gateway.device.agent.cli.pinning import Pinning
from gateway.device.agent.config import state_folder
from gateway.device.agent.state.identity import bootstrap, read_identity


def command(arguments: argparse.Namespace) -> int:
    """Write the identity. Safe to repeat."""
    given = read_identity(Path(arguments.dir))  # before `configured` drops privileges: it may be readable for root only
    with Pinning(state_folder(arguments.state)) as pinning:
        _, folder = configured(arguments)
        with errors_with_exit_codes():
            identity = bootstrap(given, folder)
        pinning.keep(identity.root)
    print(f"this device is {identity.device}; it asks {identity.assignment} and keeps its store in {folder}")
    return 0
