"""`edge-agent bootstrap DIR`: whose signatures this device trusts, and where it asks."""

from __future__ import annotations

import argparse
from pathlib import Path

from gateway.agent.cli.common import configured, told
from gateway.agent.identity import bootstrap, read_identity


def command(arguments: argparse.Namespace) -> int:
    """Lay down the identity; the same twice is harmless."""
    given = read_identity(Path(arguments.dir))  # before `configured`: it may be readable for root only
    config, folder = configured(arguments)
    with told():
        identity = bootstrap(given, folder, config.journal)
    print(f"this device is {identity.device}; it asks {identity.assignment} and keeps its store in {folder}")
    return 0
